"""The page: made of runs, opened in a browser without a network."""

import json
import re
import shutil
import subprocess

import pytest
from fake_run import make_run, rollout, row
from typer.testing import CliRunner

from dapo_cli.cli import app
from dapo_cli.errors import UsageError
from dapo_cli.report.page import unique_names, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><script>throw 1</script><img src=x onerror=alert(1)> \u2028 \x1b[2J \ud800"


@pytest.fixture
def run(tmp_path):
    key = "eval/heldout/avg@4"
    rows = [row(0, **{key: 0.3, f"{key}_over_samples_low": 0.25, f"{key}_over_samples_high": 0.35})]
    rows += [row(step) for step in range(1, 41)]
    rows[-1] |= {key: 0.5, f"{key}_over_samples_low": 0.45, f"{key}_over_samples_high": 0.55}
    hostile = rollout("p", 1, "wrong", response=HOSTILE.replace("\ud800", ""), prediction="<b>8</b>", reward=-2.0)
    rollouts = {step: [rollout("p", 0, "right"), hostile] for step in (1, 20, 40)}
    return make_run(tmp_path / "one" / "demo", rows, rollouts)


def test_the_page_is_whole_and_asks_nobody(run, tmp_path):
    notes = []
    [reported] = write_report([run.path], tmp_path / "page.html", None, notes.append)
    page = (tmp_path / "page.html").read_text()
    own = page.partition('id="data">')[0] + page.partition('id="data">')[2].partition("</script>")[2]
    assert re.findall(r"(?:src|href)\s*=\s*(\S+)", own) == ['"data:,">']
    assert re.findall(r"https?://\S+", own) == ['http://www.w3.org/2000/svg";']
    assert "Accuracy rises" in page
    assert (reported.name, reported.steps) == ("demo", 40)
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["runs"][0]["rollouts"][1]["response"][0].startswith("</script>")
    assert page.count("</script>") == 2  # the data and the script: text of a model ends neither


def browse(page, tmp_path, *options):
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=5000"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", *options, f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_draws_it_without_an_error(run, tmp_path):
    other = make_run(tmp_path / "two" / "demo", [row(step) for step in range(1, 31)], {})
    reference = tmp_path / "export.csv"
    lines = [f"{n},{0.4 + n / 1000},{20 + n}\n" for n in range(50)]
    reference.write_text("Step,actor/entropy,response_length/mean\n" + "".join(lines))
    page = tmp_path / "page.html"
    write_report([run.path, other.path], page, reference, print)
    dom = browse(page, tmp_path, "--dump-dom")
    attributes = re.search(r"<html[^>]*>", dom).group(0)
    assert 'data-ready="yes"' in attributes
    assert 'data-errors="0"' in attributes
    drawn = int(re.search(r'data-charts="(\d+)"', attributes).group(1))
    assert drawn == dom.count("<svg") >= 12
    assert dom.count('class="smooth"') > drawn  # two runs in one chart, and the reference
    assert dom.count('class="smooth" style="stroke:var(--reference)') == 2
    assert "6 of 6 chosen rollouts" in dom
    assert "<img" not in dom


def test_runs_of_one_name_are_told_apart(run, tmp_path):
    other = tmp_path / "two" / "demo"
    assert unique_names([run.path, other]) == ["one/demo", "two/demo"]


def test_the_command_names_findings_and_the_next_command(run, tmp_path):
    out = tmp_path / "deep" / "page.html"
    shown = CliRunner().invoke(app, ["report", str(run.path), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "demo: 40 steps" in shown.output
    assert "good   Accuracy rises" in shown.output
    assert f"next: dapo samples {run.path}" in shown.output
    assert out.is_file()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a run directory"):
        write_report([tmp_path], tmp_path / "page.html", None, print)
    assert not (tmp_path / "page.html").exists()
