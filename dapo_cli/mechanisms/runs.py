"""One run of one arm: the project's own training loop, measured after every step, and nothing kept but the curve."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo_cli.backend.local import LocalBackend
from dapo_cli.dataset.stream import ProblemStream
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.mechanisms.curves import Point, crossing
from dapo_cli.mechanisms.measuring import Measurement
from dapo_cli.mechanisms.schema import Mechanism
from dapo_cli.mechanisms.tasks import build_task
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.collect import Collector
from dapo_cli.rollout.prompts import PromptRenderer, training_sampling
from dapo_cli.run.console import Console
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import print_note
from dapo_cli.run.recorder import Recorder
from dapo_cli.run.signals import StopSignals
from dapo_cli.run.tracking import Tracker
from dapo_cli.toy.tokenizer import build_tokenizer
from dapo_cli.trainer import NothingToLearn, TrainState, train
from dapo_cli.types import RolloutGroup

KEPT_METRICS = ("update/clip_fraction_high", "update/clip_fraction_low", "update/entropy", "rollout/accuracy")
"""Of each step's metrics, besides what is measured."""


class Reached(Exception):
    """Every level that a metric asks for was reached: the rest of the run would change nothing."""


@dataclass(slots=True)
class Curve:
    """What was measured, from before the first step on."""

    points: list[Point] = field(default_factory=list)
    ended: str | None = None
    """Why it ended before its last step, where that was not because every level was reached."""
    seconds: float = 0.0


class CurveRecorder(Recorder):
    """A recorder that measures after every step, saves nothing, and ends the run once every level is reached."""

    def __init__(self, recipe: Recipe, folder: Path, mechanism: Mechanism, measurement: Measurement) -> None:
        self._null = open(os.devnull, "w")  # noqa: SIM115 (closed with the recorder)
        console = Console("", recipe.train.steps, self._null)
        tracker = Tracker(None, print_note)
        super().__init__(recipe, RunDirectory(folder), console, tracker, StopSignals(), measurement.decode)
        self.curve = Curve([measurement.point(0, 0, 0, {})])
        self._metrics_asked = mechanism.metrics
        self._measurement = measurement
        self._tokens = 0

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """The step, then its point of the curve."""
        with super().step(step):
            yield
        line = self._metrics.last
        kept = {key: float(line[key]) for key in KEPT_METRICS if line.get(key) is not None}
        self.curve.points.append(self._measurement.point(step, int(line["updates"]), self._tokens, kept))

    def rollouts(self, step: int, drawn: Sequence[RolloutGroup], kept: Sequence[RolloutGroup]) -> None:
        """Count every token that was generated, whether it is trained on or not."""
        self._tokens += sum(len(rollout.response_ids) for group in drawn for rollout in group.rollouts)
        super().rollouts(step, drawn, kept)

    def stop_if_requested(self) -> None:
        """Also called before each step.

        Raises:
            Reached: no metric needs further steps.
        """
        levels = [(metric.value, metric.until) for metric in self._metrics_asked]
        if all(level is not None and crossing(self.curve.points, value, level, "step") for value, level in levels):
            raise Reached
        super().stop_if_requested()

    def note(self, text: str) -> None:
        """Nothing: smaller steps and the like belong to the experiment, and would be thousands of lines."""

    def save(self, *state: Any) -> None:
        """Nothing: runs of seconds are repeated, not resumed."""

    def close(self) -> None:
        """Also the console's stream."""
        super().close()
        self._null.close()


def run_arm(mechanism: Mechanism, recipe: Recipe, model: Path, pair: int) -> Curve:
    """Train by `recipe`, which holds the seeds; pairs are measured with the same random numbers."""
    started = time.monotonic()
    task = build_task(mechanism.task)
    tokenizer = build_tokenizer()
    renderer = PromptRenderer(tokenizer, recipe.prompt)
    rendered = [renderer.render(problem) for problem in task.problems]
    sampling = training_sampling(recipe.rollout, (tokenizer.eos_token_id,))
    with ExitStack() as stack:
        backend = LocalBackend(recipe, str(model), tokenizer)
        stack.callback(backend.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dapo-mechanism-")))
        measurement = Measurement(mechanism, recipe, backend, tokenizer, rendered, pair)
        recorder = CurveRecorder(recipe, folder, mechanism, measurement)
        stack.callback(recorder.close)
        stream = ProblemStream(task.problems, recipe.dataset.shuffle_seed)
        prompts = {prompt.problem.text: prompt for prompt in rendered}
        collector = Collector(recipe, backend, stream, prompts, sampling, recorder.stop_if_requested)
        try:
            train(recipe, backend, collector, no_evaluation, recorder, TrainState())
        except Reached:
            pass
        except NothingToLearn as stop:
            recorder.curve.ended = stop.message
    recorder.curve.seconds = time.monotonic() - started
    return recorder.curve


def no_evaluation(step: int) -> EvaluationResult:
    """What the loop calls for an evaluation; recipes of mechanisms ask for none."""
    raise AssertionError(f"step {step}: the recipe of a mechanism asks for an evaluation")
