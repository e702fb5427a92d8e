import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from fake_evaluation import SAMPLING, SETTINGS_OF_FAKE, Fake, write_fake

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.benchmark import PublishedScore, load_benchmark
from dapo_cli.evaluation.evaluate import load_result
from dapo_cli.evaluation.html_digest import choose_samples, read_digest, read_response
from dapo_cli.evaluation.html_report import HTML, setting_rows, warnings, write_html
from dapo_cli.evaluation.html_text import visible

PUBLISHED = load_benchmark("aime_2024").published
SMALL = Fake(problems=3, settings=replace(SETTINGS_OF_FAKE, samples=4))
VOID = {"meta", "link", "br"}
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
HOSTILE = (
    "<script>alert(1)</script> </details></pre><img src=x onerror=alert(2)> {{ 7*7 }} \x00\x07\x1b[31m\x7f\x85 "
    + "\u202egnorw \ud800 \udfff ]]> &amp; é 😀 Boxed end"
)


class Page(HTMLParser):
    """A page by its parts; every tag must be closed by its own."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.pres = [], Counter(), [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "pre":
            self.pres.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text.append(" " if tag in ("td", "th") else "")

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)
        if "pre" in self.open:
            self.pres[-1] += data

    @property
    def words(self):
        return " ".join("".join(self.text).split())


def page(folder, published=PUBLISHED):
    return Page(write_html(folder, published).read_text(encoding="utf-8"))


def edited(**changes):
    return lambda record: replace(record, **changes)


def test_the_page_has_the_score_both_intervals_and_the_published_scores_with_source(tmp_path):
    folder = write_fake(tmp_path, Fake())
    result, words = load_result(folder), page(folder).words
    assert f"avg@32 {100 * result.avg_at_n:.1f}% over 30 problems × 32 responses" in words
    for interval in (result.interval_over_samples, result.interval_over_problems):
        assert f"{100 * interval.low:.1f}% to {100 * interval.high:.1f}% on" in words
    assert f"pass@32 {100 * result.pass_at_k(32):.1f}%" in words
    for each in PUBLISHED:
        assert f"{each.name}: {each.score:.1f} (avg@32)" in words
        assert each.source in words
        assert re.search(rf"{re.escape(each.name)} {each.score:g}: difference [+-]\d", words)


def test_the_grid_has_a_titled_cell_for_each_response_and_the_legend_counts_them(tmp_path):
    write_fake(tmp_path, Fake())
    text = write_html(tmp_path, PUBLISHED).read_text(encoding="utf-8")
    grid = text[text.index('<svg class="grid"') :]
    grid = grid[: grid.index("</svg>")]
    kinds = Counter(re.findall(r'<rect class="(\w+)"', grid))
    digest = read_digest(tmp_path)
    expected = Counter(sample.kind for problem in digest.problems for sample in problem.samples)
    assert kinds == expected
    assert kinds.total() == 960
    assert len(kinds) == 5
    assert "<title>problem 30, sample 31: " in grid
    words = Page(text).words
    assert f"verifier error (scoring failed; counts as not right): {kinds['verifier_error']}" in words
    assert f"right: {kinds['right']}" in words
    assert "truncated (not right, and cut off at the limit): " in words


def test_nothing_is_fetched_and_no_script_runs(tmp_path):
    write_fake(tmp_path, SMALL)
    text = write_html(tmp_path, PUBLISHED).read_text(encoding="utf-8")
    found = Page(text)
    assert found.tags["script"] == found.tags["iframe"] == found.tags["img"] == 0
    links = [value for _, name, value in found.attributes if name in ("src", "href", "srcset", "action")]
    assert all(value.startswith("#") or value == "data:," for value in links)
    assert "url(" not in text
    assert "@import" not in text
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    ids = {value for _, name, value in found.attributes if name == "id"}
    assert {value[1:] for value in links if value.startswith("#")} <= ids
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_text_of_models_and_problems_stays_text(tmp_path):
    hostile = edited(response=HOSTILE, problem=HOSTILE, prediction=HOSTILE, ground_truth=HOSTILE)
    settings = replace(SMALL.settings, model=f"models/{HOSTILE}", benchmark="own <b>")
    folder = write_fake(tmp_path, replace(SMALL, settings=settings), hostile)
    published = [PublishedScore(name="<i>them</i>", score=50.0, samples=1, source="<u>x</u>")]
    found = page(folder, published)
    assert {"script", "img", "b", "i", "u"} & set(found.tags) == set()
    assert visible(HOSTILE) in "".join(found.pres)
    assert "{{ 7*7 }}" in found.words
    assert r"\ud800" in found.words
    assert "<i>them</i>: 50.0 (avg@1)" in found.words
    raw = (folder / HTML).read_bytes().decode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", raw)


def test_a_response_keeps_its_leading_empty_lines(tmp_path):
    folder = write_fake(tmp_path, SMALL, edited(response="\n\n  first"))
    text = write_html(folder, ()).read_text(encoding="utf-8")
    # HTML drops the first newline inside <pre>: three in the file are two on the page.
    assert "<pre>\n\n\n  first</pre>" in text


def test_the_table_has_majority_and_wrong_answers(tmp_path):
    answers = {0: ("right", "5"), 1: ("wrong", "9"), 2: ("wrong", "9"), 3: ("no_answer", None)}

    def judge(record):
        outcome, prediction = answers[record.sample]
        return replace(record, outcome=outcome, prediction=prediction, ground_truth="5", finish_reason="stop")

    folder = write_fake(tmp_path, SMALL, judge)
    words = page(folder).words
    assert "1 1/4 25.0% 5 9 × 2 9 × 2" in words
    assert "maj@4 0.0%" in words
    first = read_digest(folder).problems[0]
    assert first.majority() == [("9", 2)]
    assert first.wrong_answers() == [("9", 2)]


def test_unknown_lengths_are_said(tmp_path):
    words = page(write_fake(tmp_path / "none", replace(SMALL, counted=False))).words
    assert "The tokens of the responses were not counted" in words
    assert "tokens not counted" in words
    some = write_fake(tmp_path / "some", SMALL, lambda r: replace(r, response_tokens=None) if r.sample == 0 else r)
    assert "The tokens of 3 responses are not known" in page(some).words


def test_length_charts_count_each_response_once(tmp_path):
    tokens = {0: 10, 1: 10, 2: 30, 3: 30}
    outcome = {0: "right", 1: "wrong", 2: "right", 3: "right"}
    folder = write_fake(
        tmp_path, SMALL, lambda r: replace(r, response_tokens=tokens[r.sample], outcome=outcome[r.sample])
    )
    text = write_html(folder, ()).read_text(encoding="utf-8")
    assert "right: 9 responses" in text
    assert "not right: 3 responses" in text
    first = re.search(r"<title>(\d+) to (\d+) tokens: (\d+) of (\d+) right</title>", text)
    assert first
    low, high, right, responses = map(int, first.groups())
    assert low <= 10 <= high < 30
    assert (right, responses) == (3, 6)


@pytest.mark.parametrize(("problems", "samples"), [(1, 1), (1, 3), (700, 1), (3, 2), (30, 300)])
def test_every_shape_makes_a_page(tmp_path, problems, samples):
    settings = replace(SETTINGS_OF_FAKE, samples=samples, benchmark="own")
    found = page(write_fake(tmp_path, Fake(problems, settings, response_words=3)))
    assert f"pass@{samples} " in found.words
    assert ("pass@1 is the score itself" in found.words) == (samples == 1)
    assert found.tags["section"] == min(problems, 40)
    assert (tmp_path / HTML).stat().st_size < 3_000_000


def test_all_right_all_wrong_and_empty_responses(tmp_path):
    for outcome, prediction in (("right", "1"), ("no_answer", None)):
        change = edited(outcome=outcome, prediction=prediction, response="", response_tokens=0, finish_reason="stop")
        words = page(write_fake(tmp_path / outcome, SMALL, change)).words
        assert f"avg@4 {'100.0' if outcome == 'right' else '0.0'}%" in words
        assert ("0 no answer × 4" in words) == (outcome == "no_answer")


def test_warnings(tmp_path):
    def of(name, change=lambda record: record, **settings):
        fake = replace(SMALL, settings=replace(SMALL.settings, benchmark="own", **settings))
        return " ".join(warnings(read_digest(write_fake(tmp_path / name, fake, change))))

    fine = edited(outcome="right", finish_reason="stop")
    assert of("fine", fine) == ""
    assert "CONTAMINATED" in of("contaminated", fine, contaminated=True)
    assert "100.0% of responses were cut off at the limit of 20480 tokens" in of("cut", edited(finish_reason="length"))
    failed = of("failed", edited(outcome="verifier_error", finish_reason="stop"))
    assert failed == "Scoring failed for 12 of 12 responses; they count as not right."
    assert "12 of 12 responses ended is not known" in of("unknown", edited(finish_reason=None))
    unsampled = replace(SAMPLING, max_response_tokens=0)
    assert of("unsampled", fine, sampling=unsampled) == "How the responses were sampled is not known."
    assert ("sampling.top_p", "not known") in setting_rows(read_digest(tmp_path / "unsampled"))


def test_a_part_of_a_card_is_not_compared_with_published_scores(tmp_path):
    short = replace(SMALL.settings, sampling=replace(SAMPLING, max_response_tokens=4096))
    words = page(write_fake(tmp_path, replace(SMALL, settings=short))).words
    assert "Only 3 of the benchmark's 30 problems were asked" in words
    assert "limited to 4096 tokens; the benchmark's card allows 20480" in words
    assert "difference" not in words


def test_every_setting_is_shown(tmp_path):
    folder = write_fake(tmp_path, SMALL)
    rows = dict(setting_rows(read_digest(folder)))
    assert rows["sampling.temperature"] == "1.0"
    assert rows["sampling.stop_token_ids"] == "2"
    assert rows["sampling.stop_strings"] == "none"
    assert {rows[key] for key in ("seed", "model", "dataset_hash")} == {"7", "models/fake#0123abcd", "d41d8cd98f00"}
    assert rows["dapo_version"] == json.loads((folder / "report.json").read_text())["dapo_version"]
    words = page(folder).words
    assert all(f"{key} {value}" in words for key, value in rows.items())


def test_long_responses_lose_their_middle_and_the_page_says_so(tmp_path):
    folder = write_fake(tmp_path, replace(Fake(), response_words=20000))
    found = page(folder)
    assert (folder / HTML).stat().st_size < 10_000_000
    assert "characters in the middle left out; all of it is in samples.jsonl" in found.words
    problem = read_digest(folder).problems[29]
    for sample in choose_samples(problem, 30):
        end = read_response(folder, sample)[-10_000:]
        assert any(pre.endswith(end) for pre in found.pres)


def test_equal_evaluations_give_equal_pages_and_no_other_file(tmp_path):
    first, second = write_fake(tmp_path / "a", SMALL), write_fake(tmp_path / "b", SMALL)
    assert write_html(first, PUBLISHED).read_bytes() == write_html(second, PUBLISHED).read_bytes()
    write_html(first, PUBLISHED)
    assert {path.name for path in first.iterdir()} == {"samples.jsonl", "settings.json", "report.json", HTML}


def test_an_unfinished_or_damaged_evaluation_is_refused_and_the_old_page_stays(tmp_path):
    write_fake(tmp_path, SMALL)
    before = write_html(tmp_path, ()).read_bytes()
    lines = (tmp_path / "samples.jsonl").read_bytes().splitlines(keepends=True)
    for damaged, message in (
        (lines[:-1], "the last problem has 3 of 4 samples"),
        (lines[:-4], "2 problems, report.json says 3"),
        ([lines[1], lines[0], *lines[2:]], "sample 1 of problem0000 where sample 0"),
        ([*lines[:5], b"{}\n", *lines[6:]], "samples.jsonl:6: not a sample"),
        ([*lines[:5], b"{", *lines[6:]], "samples.jsonl:6: not a sample"),
    ):
        (tmp_path / "samples.jsonl").write_bytes(b"".join(damaged))
        with pytest.raises(DapoError, match=re.escape(message)):
            write_html(tmp_path, ())
    assert (tmp_path / HTML).read_bytes() == before
    (tmp_path / "report.json").unlink()
    with pytest.raises(UsageError, match=r"report\.json is missing"):
        write_html(tmp_path, ())


def browse(html, profile):
    assert CHROMIUM is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr")
    command = [CHROMIUM, *options, f"--user-data-dir={profile}", "--dump-dom", html.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; the parser tests above read the page")
def test_a_browser_shows_the_page_without_complaint(tmp_path):
    hostile = edited(response=HOSTILE, problem=HOSTILE)
    html = write_html(write_fake(tmp_path / "e", SMALL, hostile), PUBLISHED)
    text = html.read_text(encoding="utf-8")
    done = browse(html, tmp_path / "profile")
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<details") == text.count("<details")
    assert done.stdout.count("<section") == 3
    assert "<script" not in done.stdout
    assert "\ufffd" not in done.stdout
    # The console is really heard: a script in the page would be refused by its policy, aloud.
    html.write_text(text.replace("</body>", "<script>1</script></body>"), encoding="utf-8")
    assert "CONSOLE" in browse(html, tmp_path / "profile").stderr
