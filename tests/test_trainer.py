"""The loop against a backend that only records: the order of calls, counters, stops, and what is saved."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import ScriptedGenerator, collector
from tiny import tiny_recipe

from dapo_cli.run.checkpoints import newest_complete
from dapo_cli.run.console import Console
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.recorder import Recorder
from dapo_cli.run.signals import StopRequested, StopSignals
from dapo_cli.run.tracking import Tracker
from dapo_cli.trainer import Diverged, NothingToLearn, TrainState, train


class RecordingBackend(ScriptedGenerator):
    """Writes down every call; its policy is a counter of updates."""

    trained_parameters = 10

    def __init__(self, right=lambda index: 2):
        super().__init__(right)
        self.calls = []
        self.updates = 0
        self.after_update = lambda: None

    def generate(self, requests):
        self.calls.append("generate")
        return super().generate(requests)

    def logprobs(self, batch):
        self.calls.append("logprobs")
        return np.full(len(batch.rollout_logprobs), -1.25, dtype=np.float32)

    def update(self, minibatch, learning_rate):
        assert minibatch.old_logprobs is not None
        self.calls.append(f"update {len(minibatch)} at {learning_rate:g}")
        self.updates += 1
        self.after_update()
        return {"loss/policy": float(self.updates), "update/skipped_count": 0.0}

    def sync_weights(self, policy_version):
        self.calls.append(f"sync {policy_version}")
        return {"sync/probe_max": 0.0}

    def save(self, folder):
        self.calls.append("save")
        (folder / "weights").write_text(str(self.updates))


class Setting:
    """A recipe with its recorder, collector and backend in a folder."""

    def __init__(self, folder, right=lambda index: 2, **changes):
        self.recipe = tiny_recipe(
            **{
                "train": {"steps": 3, "learning_rate": 0.5, "warmup_steps": 2},
                "checkpoint": {"every": 2},
                "eval": {"every": 2},
                "tracking": {"rollouts": "none"},
            }
            | changes
        )
        self.backend = RecordingBackend(right)
        self.run = RunDirectory.create(folder / "run", "", {})
        self.signals = StopSignals()
        notes = self.notes = []
        console = Console("test", self.recipe.train.steps, io.StringIO())
        console.note = notes.append
        self.recorder = Recorder(self.recipe, self.run, console, Tracker(None, notes.append), self.signals, str)
        self.collector = collector(self.recipe, self.backend, self.recorder.stop_if_requested)

    def evaluate(self, step):
        self.backend.calls.append(f"evaluate {step}")
        return SimpleNamespace(settings=SimpleNamespace(benchmark="b"), to_metrics=lambda: {"eval/b/avg@1": 0.5})

    def train(self, state=None):
        state = state or TrainState()
        return train(self.recipe, self.backend, self.collector, self.evaluate, self.recorder, state)

    def metrics(self):
        return [json.loads(line) for line in self.run.metrics_file.read_text().splitlines()]


def test_each_step_generates_recomputes_logprobs_updates_and_syncs_in_that_order(tmp_path):
    setting = Setting(tmp_path)
    state = setting.train()
    updates = ["update 8 at 0.25", "update 8 at 0.25"], ["update 8 at 0.5", "update 8 at 0.5"]
    assert setting.backend.calls == [
        "sync 0",
        *["generate", "logprobs", *updates[0], "sync 1"],
        *["generate", "logprobs", *updates[1], "sync 2", "evaluate 2", "save"],
        *["generate", "logprobs", *updates[1], "sync 3", "evaluate 3", "save"],
    ]
    assert state == TrainState(step=3, updates=6)
    assert [(row["step"], row["updates"]) for row in setting.metrics()] == [(1, 2), (2, 4), (3, 6)]
    assert setting.metrics()[0]["loss/policy"] == 1.5
    # Rollout log-probs are -1 and -2, old ones -1.25.
    assert setting.metrics()[0]["rollout/logprob_mismatch_max"] == 0.75


def test_n_steps_are_k_steps_and_the_rest_after_a_resume(tmp_path):
    setting = Setting(tmp_path, train={"steps": 2, "learning_rate": 0.5, "warmup_steps": 2})
    setting.train()
    checkpoint = newest_complete(setting.run)
    longer = Setting(tmp_path / "again")
    longer.collector.stream.load_state_dict(checkpoint.state["collector"]["stream"])
    state = longer.train(TrainState(**checkpoint.state["train"]))
    assert state == TrainState(step=3, updates=6)
    assert longer.backend.calls[:3] == ["sync 2", "generate", "logprobs"]
    assert longer.backend.submissions[0] == [8, 9, 10, 11]


def test_a_stop_during_rollout_saves_the_last_finished_step(tmp_path):
    setting = Setting(tmp_path)

    def right(index):
        if index == 6:
            setting.signals.request("SIGTERM")
        return 2

    setting.backend.right = right
    with pytest.raises(StopRequested):
        setting.train()
    checkpoint = newest_complete(setting.run)
    assert checkpoint.state["train"] == {"step": 1, "updates": 2, "empty_steps": 0}
    assert checkpoint.state["collector"]["stream"]["drawn"] == 4
    assert [row["step"] for row in setting.metrics()] == [1]


def test_a_stop_during_the_updates_finishes_the_step_first(tmp_path):
    setting = Setting(tmp_path)
    setting.backend.after_update = lambda: setting.signals.request("Ctrl-C")
    with pytest.raises(StopRequested):
        setting.train()
    assert newest_complete(setting.run).step == 1
    assert (newest_complete(setting.run).path / "weights").read_text() == "2"


def test_the_time_limit_stops_and_saves(tmp_path):
    setting = Setting(tmp_path, train={"steps": 3, "learning_rate": 0.5, "stop_after_seconds": 1e-9})
    with pytest.raises(StopRequested, match=r"train\.stop_after_seconds"):
        setting.train()
    assert newest_complete(setting.run).step == 0


def test_a_step_without_informative_groups_skips_its_updates_and_a_row_of_them_stops_with_a_checkpoint(tmp_path):
    setting = Setting(
        tmp_path,
        right=lambda index: 2 if index < 4 else 0,
        train={"steps": 9, "learning_rate": 0.5},
        dynamic_sampling={"max_drawn_problems": 5, "max_empty_steps": 2},
    )
    with pytest.raises(NothingToLearn, match="step 3: no informative group in 2 steps in a row"):
        setting.train()
    assert setting.backend.calls.count("logprobs") == 1
    assert [row.get("loss/policy") for row in setting.metrics()] == [1.5, None, None]
    assert newest_complete(setting.run).state["train"] == {"step": 3, "updates": 2, "empty_steps": 2}
    assert "step 2: 0 of 4 groups after 5 problems; groups by right answers: 0/4: 5" in setting.notes[0]


def test_running_out_of_draws_trains_the_smaller_step_and_says_so(tmp_path):
    setting = Setting(tmp_path, right=lambda index: 2 * (index % 2), dynamic_sampling={"max_drawn_problems": 6})
    setting.train()
    assert setting.backend.calls[2:5] == ["generate", "generate", "logprobs"]
    assert "update 4 at 0.25" in setting.backend.calls
    assert setting.metrics()[0]["rollout/kept_groups"] == 3
    assert "3 of 4 groups after 6 problems; groups by right answers: 0/4: 3, 2/4: 3" in setting.notes[0]


def test_running_out_of_draws_stops_with_a_checkpoint_when_the_recipe_says_so(tmp_path):
    setting = Setting(
        tmp_path,
        right=lambda index: 2 if index < 4 else 0,
        dynamic_sampling={"max_drawn_problems": 6, "when_exhausted": "stop"},
    )
    with pytest.raises(NothingToLearn, match="step 2: 0 of 4 groups after 6 problems"):
        setting.train()
    checkpoint = newest_complete(setting.run)
    assert checkpoint.step == 1
    # A resume goes on with new problems instead of drawing the same ones again.
    assert checkpoint.state["collector"]["stream"]["drawn"] == 10


def test_a_step_whose_every_update_is_skipped_stops_the_run_and_saves_nothing_over_the_last_checkpoint(tmp_path):
    setting = Setting(tmp_path, checkpoint={"every": 1})
    update = setting.backend.update

    def diverging(minibatch, learning_rate):
        return update(minibatch, learning_rate) | {"update/skipped_count": float(setting.backend.updates > 2)}

    setting.backend.update = diverging
    with pytest.raises(Diverged, match="step 2: every update had a non-finite loss or gradient"):
        setting.train()
    assert newest_complete(setting.run).step == 1
    assert [row["updates"] for row in setting.metrics()] == [2]
