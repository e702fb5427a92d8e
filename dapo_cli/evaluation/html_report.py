"""One self-contained HTML page of a finished evaluation: opens offline, without script, in the dark and on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dapo_cli.evaluation import statistics
from dapo_cli.evaluation.benchmark import PublishedScore, benchmark_names, load_benchmark
from dapo_cli.evaluation.html_charts import accuracy_chart, length_chart, pass_at_k_chart, score_chart
from dapo_cli.evaluation.html_digest import (
    KINDS,
    Digest,
    ProblemDigest,
    SampleDigest,
    choose_problems,
    choose_samples,
    read_digest,
    read_response,
)
from dapo_cli.evaluation.html_grid import legend, problem_grid, sample_words
from dapo_cli.evaluation.html_text import Shortened, one_line, shorten, visible
from dapo_cli.evaluation.result import EvaluationSettings
from dapo_cli.evaluation.samples import SAMPLES
from dapo_cli.run.files import write_atomic

HTML = "report.html"
TEMPLATE = "report.html.jinja"
TEXT_BYTES, PROBLEM_BYTES = 5_000_000, 4_000
"""Room on the page for all responses together, and for one problem."""
MAX_PROBLEMS = 2000
"""Rows of the grid and of the table; further problems are in report.json."""
HIGH_TRUNCATION = 0.1
LENGTH_BINS = 12


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """A problem whose responses are on the page."""

    number: int
    """Counted from 1, as in the grid and the table."""
    problem: ProblemDigest
    text: Shortened
    samples: tuple[tuple[SampleDigest, Shortened], ...]


def write_html(folder: Path, published: Sequence[PublishedScore]) -> Path:
    """Write report.html of the finished evaluation in `folder` next to its report.json; returns its path.

    Equal evaluations give equal pages. Memory and the page's size do not grow with the length of responses.

    Raises:
        UsageError: the folder holds no finished evaluation.
        DapoError: samples.jsonl is damaged.
        OSError: the page cannot be written; one that was there is then as it was.
    """
    digest = read_digest(folder)
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": _percent, "line": one_line, "visible": visible}
    page = environment.get_template(TEMPLATE).render(_values(digest, published))
    write_atomic(folder / HTML, page)
    return folder / HTML


def _values(digest: Digest, published: Sequence[PublishedScore]) -> dict[str, Any]:
    """Everything that the template names."""
    result, problems = digest.result, digest.problems[:MAX_PROBLEMS]
    chosen = choose_problems(problems)
    return {
        "result": result,
        "n": result.settings.samples,
        "published": published,
        "warnings": list(warnings(digest)),
        "grid": problem_grid(problems, set(chosen)),
        "legend": legend(digest.problems),
        "problems": problems,
        "left_out": len(digest.problems) - len(problems),
        "linked": set(chosen),
        "shown": list(_shown(digest, chosen)),
        "sample_words": sample_words,
        "kinds": KINDS,
        "samples_file": SAMPLES,
        "settings": setting_rows(digest),
        **_length_values(digest),
        **_score_values(digest, published),
    }


def _length_values(digest: Digest) -> dict[str, Any]:
    records = [sample.record for problem in digest.problems for sample in problem.samples]
    tokens, right = [each.response_tokens for each in records], [each.outcome == "right" for each in records]
    bins = [each for each in statistics.accuracy_by_length(tokens, right, LENGTH_BINS) if each.low is not None]
    return {
        "uncounted": tokens.count(None),
        "accuracy_chart": accuracy_chart(bins) if bins else None,
        "length_chart": length_chart(bins) if bins else None,
    }


def _score_values(digest: Digest, published: Sequence[PublishedScore]) -> dict[str, Any]:
    result, n = digest.result, digest.result.settings.samples
    predictions = [[sample.record.prediction for sample in problem.samples] for problem in digest.problems]
    right = [[sample.record.outcome == "right" for sample in problem.samples] for problem in digest.problems]
    # A part of the problems says nothing about a score over all of them.
    whole = _missing_problems(result.settings, len(result.problems)) == 0
    others = [statistics.Published(each.score / 100, each.samples, each.name) for each in published if whole]
    counts = result.num_correct
    passes = [result.pass_at_k(k) for k in range(1, n + 1)]
    return {
        "verdicts": [statistics.verdict_line(counts, n, other) for other in others]
        or [statistics.verdict_line(counts, n)],
        "score_chart": score_chart(result, published),
        "majority": statistics.majority_at_k(predictions, right, n).score,
        "pass_chart": pass_at_k_chart(passes) if n > 1 else None,
    }


def _shown(digest: Digest, chosen: Sequence[int]) -> Iterator[ShownProblem]:
    samples = {index: choose_samples(digest.problems[index], len(chosen)) for index in chosen}
    room = TEXT_BYTES // sum(map(len, samples.values()))
    for index in chosen:
        texts = [(each, shorten(read_response(digest.folder, each), room)) for each in samples[index]]
        problem = digest.problems[index]
        yield ShownProblem(index + 1, problem, shorten(problem.text, PROBLEM_BYTES), tuple(texts))


def warnings(digest: Digest) -> Iterator[str]:
    """What a reader must know before believing the score, each in a sentence."""
    result, report = digest.result, digest.report
    settings, total = result.settings, len(result.problems) * result.settings.samples
    limit = settings.sampling.max_response_tokens
    if "warning" in report:
        yield str(report["warning"])
    if result.truncated_rate > HIGH_TRUNCATION:
        of = f" of {limit} tokens" if limit else ""
        yield f"{_percent(result.truncated_rate)} of responses were cut off at the limit{of}."
    failed = sum(problem.verifier_errors for problem in result.problems)
    if failed:
        yield f"Scoring failed for {failed} of {total} responses; they count as not right."
    yield from _card_warnings(result.settings, len(result.problems))
    if limit == 0:
        yield "How the responses were sampled is not known."
    endings = [sample.record.finish_reason for problem in digest.problems for sample in problem.samples]
    if None in endings:
        unknown = f"{endings.count(None)} of {total} responses"
        yield f"How {unknown} ended is not known; none of these is counted as truncated."


def _card_warnings(settings: EvaluationSettings, num_problems: int) -> Iterator[str]:
    """How the evaluation falls short of the packaged card of its benchmark; nothing where it has none."""
    if settings.benchmark not in benchmark_names():
        return
    card, limit = load_benchmark(settings.benchmark), settings.sampling.max_response_tokens
    if 0 < limit < (card.sampling.max_response_tokens or 0):
        allowed = card.sampling.max_response_tokens
        yield f"Responses were limited to {limit} tokens; the benchmark's card allows {allowed}."
    missing = _missing_problems(settings, num_problems)
    if missing:
        of = f"{num_problems} of the benchmark's {num_problems + missing} problems"
        yield f"Only {of} were asked: published scores, which are over all of them, cannot be compared with this one."


def _missing_problems(settings: EvaluationSettings, num_problems: int) -> int:
    """Problems of a packaged card that were not asked; 0 where there is no card to tell."""
    source = load_benchmark(settings.benchmark).source if settings.benchmark in benchmark_names() else None
    return 0 if source is None else max(0, source.problems - num_problems)


def setting_rows(digest: Digest) -> list[tuple[str, str]]:
    """Every key of settings.json, and what report.json adds of versions, in the order of the files."""
    own = digest.settings
    more = {"dapo_version": digest.report.get("dapo_version")} | {
        key: value for key, value in digest.report.items() if key.endswith(("_version", "_versions", "_hash"))
    }
    rows = [*_rows(own), *_rows({key: value for key, value in more.items() if key not in own})]
    unknown = digest.result.settings.sampling.max_response_tokens == 0
    return [(key, "not known" if unknown and key.startswith("sampling.") else value) for key, value in rows]


def _rows(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(repr, value)) or "none"
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
