import subprocess
import sys

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


class BrokenRun:
    id = "abc"

    def log(self, values):
        raise ConnectionError("no route")

    def finish(self):
        raise RuntimeError("still no route")


def test_a_tracker_that_fails_is_shown_counted_and_survived():
    notes = []
    tracker = Tracker(BrokenRun(), notes.append)
    tracker.log({"step": 1})
    tracker.log({"step": 2})
    tracker.close()
    assert tracker.failures == 3
    assert notes == [
        "wandb log failed and training goes on: ConnectionError: no route",
        "wandb failed 3 times; metrics.jsonl has every step",
    ]


def test_null_values_are_left_out():
    class Run:
        def log(self, values):
            self.seen = values

    run = Run()
    Tracker(run, print).log({"step": 1, "loss/policy": None, "rollout/accuracy": 0.5})
    assert run.seen == {"step": 1, "rollout/accuracy": 0.5}


def test_neither_wandb_nor_torch_is_imported_before_it_is_asked_for():
    modules = ("tracking", "console", "metrics", "checkpoints", "samples", "signals", "manifest", "rollout_metrics")
    imports = ", ".join(f"dapo_cli.run.{module}" for module in modules)
    program = f"import sys, {imports}; print('wandb' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_offline_for_real_and_a_resume_keeps_the_id(tmp_path):
    pytest.importorskip("wandb")
    settings = Tracking(wandb="offline", project="dapo-test")
    first = start_tracker(settings, tmp_path, {"train": {"steps": 2}})
    first.log({"step": 1, "rollout/accuracy": 0.5, "loss/policy": None})
    first.close()
    second = start_tracker(settings, tmp_path, {}, run_id=first.run_id)
    second.log({"step": 2, "rollout/accuracy": 0.75})
    second.close()
    assert (first.failures, second.failures) == (0, 0)
    assert first.run_id
    assert second.run_id == first.run_id
    written = list(tmp_path.glob(f"wandb/offline-run-*/run-{first.run_id}.wandb"))
    assert written
    assert all(file.stat().st_size > 0 for file in written)
