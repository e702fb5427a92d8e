"""What a run leaves behind while it goes: metrics, rollouts, the screen, the tracker, checkpoints. One per process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from dapo_cli.errors import DapoError
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.recipe.schema import Recipe
from dapo_cli.run.checkpoints import Checkpoint, Keep, begin_checkpoint, clear_leftovers
from dapo_cli.run.console import Console
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.disk import expected_bytes, refuse_full_disk
from dapo_cli.run.files import Note, next_free
from dapo_cli.run.integrity import Metric
from dapo_cli.run.metrics import Metrics
from dapo_cli.run.rollout_metrics import rollout_metrics, version_lag
from dapo_cli.run.samples import Decode, choose_groups, rollout_rows, save_rollouts
from dapo_cli.run.signals import StopSignals
from dapo_cli.run.tracking import Tracker
from dapo_cli.run.view import score_key
from dapo_cli.types import RolloutGroup

if TYPE_CHECKING:
    from dapo_cli.backend.interface import Backend
    from dapo_cli.rollout.collect import Collector
    from dapo_cli.trainer import TrainState


class Recorder:
    """Passes what happens in a step to everything that keeps or shows it."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunDirectory,
        console: Console,
        tracker: Tracker,
        signals: StopSignals,
        decode: Decode,
    ) -> None:
        self.recipe = recipe
        self.run = run
        self.signals = signals
        self.last_evaluation: EvaluationResult | None = None
        self._console = console
        self._tracker = tracker
        self._decode = decode
        self._metrics = Metrics(run.metrics_file, console.note)
        self._for_table: list[dict[str, Any]] = []
        self._started = time.monotonic()
        self._saved: dict[str, Any] | None = None
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saving: Future[Checkpoint] | None = None

    @property
    def has_lines(self) -> bool:
        """Whether metrics.jsonl has a line already."""
        return bool(self._metrics.last)

    def note(self, text: str) -> None:
        """Show something the user should know."""
        self._console.note(text)

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Collect the metrics of `step`; at the end write, show and track them. A step that raises leaves no line."""
        with self._metrics.step(step):
            yield
        self._console.step(self._metrics.last)
        self._tracker.log(self._metrics.last, self._for_table)
        self._for_table = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show that a stage runs and add its seconds to `time/<name>`."""
        self._console.stage(name)
        with self._metrics.time(name):
            yield

    def add(self, metrics: Mapping[str, float]) -> None:
        """Metrics of the current step."""
        self._metrics.add(metrics)

    def rollouts(self, step: int, drawn: Sequence[RolloutGroup], kept: Sequence[RolloutGroup]) -> None:
        """Measure a step's rollouts and save those that the recipe wants saved."""
        self.add(rollout_metrics(drawn, kept) | version_lag(kept, step - 1))
        tracking = self.recipe.tracking
        chosen = choose_groups(drawn, kept, tracking.rollouts, tracking.sampled_groups)
        self.add(save_rollouts(self.run, step, chosen, kept, self._decode))
        if self._tracker.run_id is not None:
            kept_indices = {group.index for group in kept}
            firsts = [replace(group, rollouts=group.rollouts[:1]) for group in drawn[: tracking.table_rollouts]]
            self._for_table = list(rollout_rows(firsts, kept_indices, self._decode))

    def evaluation(self, result: EvaluationResult) -> None:
        """A finished evaluation of the current step."""
        self.last_evaluation = result
        metrics = result.to_metrics()
        self.add(metrics)
        self._console.evaluation(result.settings.benchmark, metrics)

    def stop_if_requested(self) -> None:
        """Call at safe points; also notices the recipe's time limit.

        Raises:
            StopRequested: Ctrl-C, SIGTERM or `train.stop_after_seconds`.
        """
        limit = self.recipe.train.stop_after_seconds
        if limit is not None and time.monotonic() - self._started > limit:
            self.signals.request(TIME_LIMIT)
        self.signals.raise_if_requested()

    def save(self, state: TrainState, backend: Backend, collector: Collector) -> None:
        """Write a checkpoint of the last finished step, unless this very state was saved last.

        With `checkpoint.asynchronous` it is completed in the background, at the latest before the next one begins.
        """
        content = {
            "train": asdict(state),
            "collector": collector.state_dict(),
            "wandb_run_id": self._tracker.run_id,
        }
        if content == self._saved:
            return
        with self.stage("checkpoint"):
            self.finish_saving()
            # Half of a checkpoint that a killed save left must not count as taken: the next save removes it.
            clear_leftovers(self.run)
            refuse_full_disk(self.run.path, expected_bytes(self.run, backend.trained_parameters))
            keep = Keep(self.recipe.checkpoint.keep_last, self.recipe.checkpoint.keep_best)
            finish = begin_checkpoint(self.run, state.step, backend.save, content, keep, self._worth(state.step))
            if self.recipe.checkpoint.asynchronous:
                self._saving = self._background.submit(finish)
            else:
                finish()
        self._saved = content

    def _worth(self, step: int) -> Metric | None:
        """The metric by which the best checkpoints are kept, at `step`; None where it was not measured then."""
        row, stated = self._metrics.last, self.recipe.checkpoint.best_metric
        key = stated or score_key(row)
        measured = row.get("step") == step
        value = row.get(key) if key is not None and measured else None
        due = stated is not None and (not stated.startswith("eval/") or score_key(row) is not None)
        if measured and due and value is None:
            self.note(
                f"step {step}: has no value of checkpoint.best_metric {stated}, so its checkpoint is not among the best"
            )
        return None if key is None or value is None else (key, float(value))

    def finish_saving(self) -> None:
        """Wait until a checkpoint that is written in the background is complete.

        Raises:
            DapoError: it could not be written.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def close(self) -> None:
        """Let a checkpoint in the background finish, after whatever ended the run; a failure is shown, not raised."""
        try:
            self.finish_saving()
        except DapoError as error:
            self.note(error.message)
        self._background.shutdown()


TIME_LIMIT = "train.stop_after_seconds"


def evaluation_folder_name(benchmark: str, step: int) -> str:
    """The folder inside `evals/` of an evaluation after `step`."""
    return f"{benchmark}_step_{step}"


def move_evaluations_after(run: RunDirectory, step: int | None, note: Note) -> None:
    """Move evaluations of later steps (None: all) aside, so that a resume does not take up samples of other weights."""
    late = []
    for folder in sorted(run.evals.glob("*_step_*")) if run.evals.is_dir() else []:
        number = folder.name.rpartition("_")[2]
        if number.isdigit() and (step is None or int(number) > step):
            late.append(folder)
    if not late:
        return
    aside = next_free(run.path, f"evals.after-{'start' if step is None else step}.{{}}")
    aside.mkdir()
    for folder in late:
        os.rename(folder, aside / folder.name)
    note(f"{run.evals}: {len(late)} evaluations moved to {aside.name}")
