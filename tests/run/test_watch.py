"""A run watched by its files."""

import io
import json
import os
import platform
import subprocess
import sys

import pytest
from tiny import tiny_recipe

from dapo_cli.errors import UsageError
from dapo_cli.recipe.dump import to_yaml
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.watch import Tail, Watch, watch


@pytest.fixture
def run(tmp_path):
    """A run of 5 steps, not begun."""
    return RunDirectory.create(tmp_path / "demo", to_yaml(tiny_recipe(train={"steps": 5})), {})


def write(run, *steps, mode="a"):
    with run.metrics_file.open(mode) as file:
        for step in steps:
            file.write(json.dumps({"step": step, "rollout/accuracy": step / 10, "time/step": 2.0}) + "\n")


def locked_by(run, pid, host=None):
    (run.path / ".lock").write_text(f"{pid} {host or platform.node()}\n")


def steps(rows):
    return [row["step"] for row in rows]


def test_lines_count_when_their_end_is_there(run):
    tail = Tail(run.metrics_file)
    assert tail.read() == (False, [])
    write(run, 0, 1)
    assert [tail.read()[0], steps(tail.read()[1])] == [True, []]
    with run.metrics_file.open("a") as file:
        file.write('{"step": 2, "roll')
        file.flush()
        assert tail.read() == (False, [])
        file.write('out/accuracy": 0.5}\n')
    assert steps(tail.read()[1]) == [2]


@pytest.mark.parametrize("way", ["replaced", "shortened"])
def test_a_resume_that_moves_lines_aside_begins_the_curves_anew(run, way):
    write(run, 0, 1, 2, 3)
    watched = Watch.of(run.path, False)
    assert steps(watched.look()) == [0, 1, 2, 3]
    if way == "replaced":
        os.replace(run.metrics_file, run.path / "metrics.after-1.1.jsonl")
    write(run, 0, 1, mode="w")
    assert steps(watched.look()) == [0, 1]
    assert watched.view.row["step"] == 1
    assert watched.view.curves["rollout/accuracy"].points == [0.0, 0.1]


def test_who_works_on_the_run_is_told_by_its_lock(run):
    watched = Watch.of(run.path, False)
    (run.path / ".lock").unlink()
    watched.look()
    assert watched.state() == "waiting"
    write(run, 0, 1)
    locked_by(run, os.getpid())
    watched.look()
    assert watched.state() == "running"
    assert watched.view.seconds_left == 8.0  # 4 steps of 2 seconds
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    locked_by(run, gone.pid)
    watched.look()
    assert watched.state() == "stopped"
    assert watched.view.seconds_left is None
    assert "--resume goes on" in watched.view.stopping
    locked_by(run, 1, "another-machine")
    assert watched.state() == "elsewhere"
    write(run, 5)
    watched.look()
    assert watched.state() == "finished"


def test_without_a_terminal_a_finished_run_is_lines_and_an_end(run):
    write(run, 0, 1, 5)
    out = io.StringIO()
    watch(run.path, 0.1, False, out)
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["0/5", "1/5", "5/5"]
    assert lines[3] == "finished"


def test_once_shows_how_it_stands_and_changes_nothing(run):
    write(run, 0, 1)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in run.path.iterdir())
    out = io.StringIO()
    watch(run.path, 0.1, True, out)
    assert "step 1/5" in out.getvalue()
    assert sorted((path.name, path.stat().st_mtime_ns) for path in run.path.iterdir()) == before
    with pytest.raises(UsageError, match="not a run directory"):
        watch(run.path / "none", 0.1, True, out)
