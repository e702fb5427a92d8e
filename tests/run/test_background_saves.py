"""Checkpoints completed in the background: nothing looks finished before it is, and a failure is not lost."""

import io
import threading
from types import SimpleNamespace

import pytest
from tiny import tiny_recipe

from dapo_cli.errors import DapoError
from dapo_cli.run.checkpoints import newest_complete, saved_steps
from dapo_cli.run.console import Console
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.recorder import Recorder
from dapo_cli.run.signals import StopSignals
from dapo_cli.run.tracking import Tracker
from dapo_cli.trainer import TrainState


class SlowBackend:
    """Its files are complete when `written` is set."""

    trained_parameters = 10

    def __init__(self, error=None):
        self.written = threading.Event()
        self.error = error

    def save(self, folder):
        def wait():
            assert self.written.wait(60)
            if self.error:
                raise self.error
            (folder / "weights").write_text("complete")

        return wait


@pytest.fixture
def setting(tmp_path):
    recipe = tiny_recipe(checkpoint={"asynchronous": True}, tracking={"rollouts": "none"})
    run = RunDirectory.create(tmp_path / "run", "", {})
    notes = []
    console = Console("test", 2, io.StringIO())
    console.note = notes.append
    recorder = Recorder(recipe, run, console, Tracker(None, notes.append), StopSignals(), str)

    def save(step, backend):
        with recorder.step(step):
            recorder.save(TrainState(step), backend, SimpleNamespace(state_dict=dict))

    return SimpleNamespace(run=run, recorder=recorder, save=save, notes=notes)


def test_training_goes_on_while_a_checkpoint_is_written_and_it_appears_when_complete(setting):
    backend = SlowBackend()
    setting.save(1, backend)
    assert saved_steps(setting.run) == {}
    backend.written.set()
    setting.recorder.finish_saving()
    assert newest_complete(setting.run).step == 1


def test_the_next_checkpoint_waits_for_the_one_before(setting):
    first, second = SlowBackend(), SlowBackend()
    setting.save(1, first)
    threading.Timer(0.1, first.written.set).start()
    setting.save(2, second)
    assert list(saved_steps(setting.run)) == [1]
    second.written.set()
    setting.recorder.close()
    assert newest_complete(setting.run).step == 2


def test_a_failed_write_stops_the_run_at_the_next_checkpoint_and_leaves_the_last_good_one(setting):
    good, bad = SlowBackend(), SlowBackend(OSError(28, "No space left on device"))
    good.written.set()
    bad.written.set()
    setting.save(1, good)
    setting.save(2, bad)
    with pytest.raises(DapoError, match="No space left"):
        setting.save(3, good)
    assert newest_complete(setting.run).step == 1
    assert [entry.name for entry in setting.run.checkpoints.iterdir()] == ["step_1"]


def test_after_another_failure_the_checkpoint_is_still_completed_and_its_failure_shown(setting):
    bad = SlowBackend(OSError(28, "No space left on device"))
    bad.written.set()
    setting.save(1, bad)
    setting.recorder.close()
    assert any("No space left" in note for note in setting.notes)
