"""Real runs of the bench, few and short; and the page of its results in a browser."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dapo_cli.cli import app
from dapo_cli.mechanisms import bench, warm_start
from dapo_cli.mechanisms.bench import run_bench, runs_of
from dapo_cli.mechanisms.definition import find_mechanism, load_definition
from dapo_cli.mechanisms.tables import as_page
from dapo_cli.mechanisms.verdicts import judge

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def short():
    """Soft overlong punishment for two steps."""
    definition = load_definition(find_mechanism("soft_overlong_punishment"))
    mechanism = definition.mechanism
    mechanism = mechanism.model_copy(
        update={
            "measure": mechanism.measure.model_copy(update={"problems": 20, "samples": 2}),
            "metric": mechanism.metric.model_copy(update={"at_step": 2}),
            "also": (),
        }
    )

    def shortened(recipe):
        return recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 2})})

    return replace(
        definition,
        mechanism=mechanism,
        baseline=shortened(definition.baseline),
        treatment=shortened(definition.treatment),
    )


@pytest.fixture(scope="module")
def curves(short, out):
    patched = pytest.MonkeyPatch()
    build = warm_start.build_task
    # A policy that has learned little will do.
    patched.setattr(warm_start, "build_task", lambda task: replace(build(task), warm_updates=60))
    yield run_bench(runs_of([short], 2), out, print)
    patched.undo()


def test_runs_of_a_pair_begin_alike_and_go_their_own_ways(curves):
    by = {(run.arm, run.pair): curve.points for run, curve in curves.items()}
    assert len(by) == 6
    assert by["baseline", 1][0] == by["treatment", 1][0] == by["control", 1][0]
    assert by["baseline", 1][1:] != by["treatment", 1][1:]
    assert by["baseline", 1][1:] != by["control", 1][1:]
    assert [point["step"] for point in by["baseline", 1]] == [0, 1, 2]
    assert all({"accuracy", "over_limit", "length", "share", "tokens"} <= set(point) for point in by["treatment", 2])


def test_what_is_done_is_kept_and_nothing_else_is_run_again(curves, short, out, monkeypatch):
    monkeypatch.setattr(bench, "run_arm", lambda *arguments: pytest.fail("run again"))
    notes = []
    again = run_bench(runs_of([short], 2), out, notes.append)
    assert {run: curve.points for run, curve in again.items()} == {run: curve.points for run, curve in curves.items()}
    assert notes == [f"{out}: 6 of 6 runs are there already"]
    file = runs_of([short], 2)[1].file(out)
    file.write_text(file.read_text()[:100])  # torn
    ran = []
    monkeypatch.setattr(bench, "run_arm", lambda *arguments: ran.append(arguments) or curves[runs_of([short], 2)[1]])
    run_bench(runs_of([short], 2), out, notes.append)
    assert len(ran) == 1


def test_another_definition_is_another_run(short):
    run = runs_of([short], 2)[0]
    changed = replace(short, baseline=short.treatment)
    assert runs_of([changed], 2)[0].identity != run.identity


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_of_results_opens_in_a_browser(curves, short, tmp_path):
    page = tmp_path / "results.html"
    page.write_text(as_page(judge([short], curves)))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=5000 --enable-logging=stderr --dump-dom"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert 'data-mechanisms="1"' in done.stdout
    assert len(re.findall("<svg", done.stdout)) == 1
    assert "CONSOLE" not in done.stderr


def test_an_unknown_name_is_refused(tmp_path):
    shown = CliRunner().invoke(app, ["mechanisms", "nothing", "--out", str(tmp_path)])
    assert shown.exit_code != 0
    assert not list(tmp_path.iterdir())
