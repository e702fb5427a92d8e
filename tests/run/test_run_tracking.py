import json
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Tracking
from dapo_cli.run.tracking import Tracker, check_tracking, start_tracker


def test_off_needs_nothing_and_does_nothing(tmp_path):
    check_tracking(Tracking())
    tracker = start_tracker(Tracking(), tmp_path, {})
    tracker.log({"step": 1})
    tracker.close()
    assert tracker.run_id is None
    assert tracker.failures == 0
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_tracking(Tracking(wandb="off"))
    with pytest.raises(UsageError, match="wandb, which is not installed") as error:
        check_tracking(Tracking(wandb="offline"))
    assert "pip install wandb" in error.value.hint


class Run:
    """A wandb run that fails as often as it is told."""

    id = "abc"

    def __init__(self, failing=0):
        self.failing = failing
        self.lines = []
        self.step = 0

    def log(self, values, step=None):
        if self.failing:
            self.failing -= 1
            raise ConnectionError("no route")
        self.step = self.step if step is None else step
        self.lines.append(values)
        self.step += 1

    def finish(self):
        if self.failing:
            raise RuntimeError("still no route")


def tracker_of(run, notes, **options):
    now = [0.0]
    return Tracker(run, notes.append, clock=lambda: now[0], **options), now


def test_a_tracker_that_fails_is_shown_once_tried_again_later_and_loses_nothing():
    run, notes = Run(failing=2), []
    tracker, now = tracker_of(run, notes)
    tracker.log({"step": 1})
    now[0] = 4.9
    tracker.log({"step": 2})  # not tried yet
    assert (tracker.failures, run.lines) == (1, [])
    now[0] = 5.0
    tracker.log({"step": 3})
    now[0] = 14.9  # after two failures in a row the wait is 10 seconds
    tracker.log({"step": 4})
    assert (tracker.failures, run.lines) == (2, [])
    now[0] = 15.0
    tracker.log({"step": 5})
    assert [line["step"] for line in run.lines] == [1, 2, 3, 4, 5]
    tracker.close()
    assert notes == [
        "wandb log failed and training goes on: ConnectionError: no route",
        "wandb failed 2 times, every step got there in the end; metrics.jsonl has every step",
    ]


def test_what_never_gets_there_is_counted():
    run, notes = Run(failing=10**9), []
    tracker, _ = tracker_of(run, notes)
    for step in range(1, 1004):
        tracker.log({"step": step})
    tracker.close()
    assert tracker.lost == 1003
    assert notes[-1] == "wandb failed 3 times, 1003 steps did not get there; metrics.jsonl has every step"


def test_null_values_are_left_out():
    run = Run()
    Tracker(run, print).log({"step": 1, "loss/policy": None, "rollout/accuracy": 0.5})
    assert run.lines == [{"step": 1, "rollout/accuracy": 0.5}]


def test_steps_are_wandbs_own_and_never_go_back():
    run = Run()
    tracker = Tracker(run, print)
    for step in (0, 1, 5):
        tracker.log({"step": step})
        assert run.step == step + 1
    tracker.log({"step": 3})  # a resume from an earlier checkpoint
    assert run.step == 7


def test_names_of_verl():
    run = Run()
    Tracker(run, print, "verl").log({"step": 1, "update/entropy": 0.5, "rollout/accuracy": 0.25})
    assert run.lines == [{"training/global_step": 1, "actor/entropy": 0.5, "dapo/rollout/accuracy": 0.25}]


def test_neither_wandb_nor_torch_is_imported_before_it_is_asked_for():
    modules = ("tracking", "console", "metrics", "checkpoints", "samples", "signals", "manifest", "rollout_metrics")
    imports = ", ".join(f"dapo_cli.run.{module}" for module in modules)
    program = f"import sys, {imports}; print('wandb' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def records(file):
    """The records of one of wandb's files: a 7-byte header, then blocks of 32 KiB in LevelDB's log format."""
    data, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def history(folder):
    """Runs and lines in the files of offline runs, in order, read by wandb's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        for data in records(file):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                yield "run", record.run
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield "line", {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


ROLLOUT = {
    "problem_id": "p",
    "prompt": "3 + 4?",
    "response": "Answer: 7",
    "ground_truth": "7",
    "prediction": "7",
    "outcome": "right",
    "reward": 1.0,
    "tokens": 3,
}


def test_offline_for_real_a_resume_goes_on_in_the_same_run_and_wandb_reads_it(tmp_path):
    pytest.importorskip("wandb")
    settings = Tracking(
        wandb="offline", project="dapo-test", entity="team", group="ladder", tags=("toy", "a"), names="verl"
    )
    first = start_tracker(settings, tmp_path, {"train": {"steps": 3}})
    first.log({"step": 1, "rollout/accuracy": 0.5, "loss/policy": None}, [ROLLOUT])
    first.log({"step": 2, "update/entropy": 0.25})
    first.close()
    second = start_tracker(settings, tmp_path, {}, run_id=first.run_id)
    second.log({"step": 3, "update/entropy": 0.125})
    second.close()
    assert (first.failures, second.failures) == (0, 0)
    assert second.run_id == first.run_id
    found = list(history(tmp_path))
    runs = [value for kind, value in found if kind == "run"]
    assert {run.run_id for run in runs} == {first.run_id}
    assert (runs[0].project, runs[0].entity, runs[0].run_group) == ("dapo-test", "team", "ladder")
    assert list(runs[0].tags) == ["a", "toy"] or list(runs[0].tags) == ["toy", "a"]
    lines = [value for kind, value in found if kind == "line"]
    assert [line["training/global_step"] for line in lines] == [1, 2, 3]
    assert lines[0]["dapo/rollout/accuracy"] == 0.5
    assert [line.get("actor/entropy") for line in lines] == [None, 0.25, 0.125]
    assert any(key.startswith("rollouts") for key in lines[0])
    listed = subprocess.run(
        [Path(sys.executable).with_name("wandb"), "sync", "--dry-run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    assert first.run_id in listed.stdout + listed.stderr
