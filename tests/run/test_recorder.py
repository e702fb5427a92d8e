"""What a saved checkpoint is worth, and the room it needs, as the loop's recorder sees them."""

import io
import shutil
from types import SimpleNamespace

import pytest
from tiny import tiny_recipe

from dapo_cli.errors import DapoError
from dapo_cli.run.console import Console
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.integrity import sealed_metric
from dapo_cli.run.recorder import Recorder
from dapo_cli.run.signals import StopSignals
from dapo_cli.run.tracking import Tracker
from dapo_cli.trainer import TrainState

SCORE = "eval/heldout/avg@4"
BACKEND = SimpleNamespace(
    trained_parameters=10, save=lambda folder: (folder / "weights").write_bytes(b"0" * 5_000) and None
)


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", "", {})


def open_recorder(run, notes=None, **checkpoint):
    recipe = tiny_recipe(checkpoint=checkpoint, tracking={"rollouts": "none"})
    console = Console("test", 2, io.StringIO())
    console.note = [].append if notes is None else notes.append
    return Recorder(recipe, run, console, Tracker(None, print), StopSignals(), str)


def train_and_save(recorder, step, metrics):
    with recorder.step(step):
        recorder.add(metrics)
    save(recorder, step)


def save(recorder, step):
    recorder.save(TrainState(step), BACKEND, SimpleNamespace(state_dict=dict))


def test_a_checkpoint_is_worth_the_evaluation_of_its_very_step(run):
    recorder = open_recorder(run)
    train_and_save(recorder, 1, {SCORE: 0.5})
    train_and_save(recorder, 2, {"reward/mean": 0.1})
    assert sealed_metric(run.checkpoints / "step_1") == (SCORE, 0.5)
    assert sealed_metric(run.checkpoints / "step_2") is None


def test_the_value_of_an_earlier_step_is_not_taken(run):
    recorder = open_recorder(run)
    train_and_save(recorder, 1, {SCORE: 0.5})
    save(recorder, 2)
    assert sealed_metric(run.checkpoints / "step_2") is None


def test_a_resume_that_saves_the_same_step_again_keeps_its_worth(run):
    train_and_save(open_recorder(run), 1, {SCORE: 0.5})
    shutil.rmtree(run.checkpoints / "step_1")
    save(open_recorder(run), 1)
    assert sealed_metric(run.checkpoints / "step_1") == (SCORE, 0.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_no_worth(run, value):
    train_and_save(open_recorder(run, keep_best=1, best_metric="reward/mean"), 1, {"reward/mean": value})
    assert sealed_metric(run.checkpoints / "step_1") is None


def test_a_best_metric_that_a_step_lacks_is_said(run):
    notes = []
    recorder = open_recorder(run, notes, keep_best=1, best_metric="reward/meen")
    train_and_save(recorder, 1, {"reward/mean": 0.1})
    assert notes == [
        "step 1: has no value of checkpoint.best_metric reward/meen, so its checkpoint is not among the best"
    ]


def test_a_step_without_an_evaluation_is_expected_and_one_of_another_name_is_said(run):
    notes = []
    recorder = open_recorder(run, notes, keep_best=1, best_metric="eval/heldout/avg@8")
    train_and_save(recorder, 1, {"reward/mean": 0.1})
    assert notes == []
    train_and_save(recorder, 2, {SCORE: 0.5})
    assert len(notes) == 1


def test_half_a_checkpoint_of_a_killed_save_does_not_count_as_taken(run, monkeypatch):
    recorder = open_recorder(run)
    train_and_save(recorder, 1, {})
    leftover = run.checkpoints / ".step_2.partial-7"
    leftover.mkdir()
    (leftover / "weights").write_bytes(b"0" * 5_000)
    room = 12_000

    def usage(folder):
        return SimpleNamespace(free=room - sum(path.stat().st_size for path in run.checkpoints.rglob("weights")))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    train_and_save(recorder, 2, {})
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_1", "step_2"]


def test_a_save_that_does_not_fit_leaves_the_checkpoints_before_it(run, monkeypatch):
    recorder = open_recorder(run)
    train_and_save(recorder, 1, {})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(DapoError, match="nothing was written"):
        train_and_save(recorder, 2, {})
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_1"]
