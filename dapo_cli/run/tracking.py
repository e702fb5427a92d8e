"""Metrics to Weights & Biases, when the recipe asks for it. A sink: it is told, and never asked."""

from __future__ import annotations

import importlib.util
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Tracking
from dapo_cli.run.files import Note, print_note
from dapo_cli.run.verl_names import TO_VERL, to_verl

Names = Literal["dapo", "verl"]

_MAX_PENDING = 1000
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 5.0, 600.0
_TABLE_COLUMNS = ("problem_id", "prompt", "response", "ground_truth", "prediction", "outcome", "reward", "tokens")


def check_tracking(settings: Tracking) -> None:
    """Call before any work.

    Raises:
        UsageError: the recipe asks for wandb and it is not installed.
    """
    if settings.wandb != "off" and importlib.util.find_spec("wandb") is None:
        raise UsageError(
            f"tracking.wandb: {settings.wandb} needs the package wandb, which is not installed",
            hint="pip install wandb, or set tracking.wandb to off",
        )


class Tracker:
    """Passes each step's line on. Once started, a failure never stops the run: it is shown and counted, and what could
    not be passed on is kept and tried again, at growing intervals."""

    def __init__(
        self, run: Any | None, note: Note, names: Names = "dapo", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._note = note
        self._names = names
        self._clock = clock
        self._pending: deque[tuple[int, dict[str, Any]]] = deque()
        self._shown: set[str] = set()
        self._failures_in_a_row = 0
        self._not_before = 0.0
        self.failures = 0
        """How many calls failed."""
        self.lost = 0
        """How many lines were given up."""

    @property
    def run_id(self) -> str | None:
        """The id that continues the same wandb run after a resume; None when tracking is off."""
        return None if self._run is None else str(self._run.id)

    def log(self, metrics: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]] = ()) -> None:
        """Pass one line of metrics on, null values left out, and rows of `rollouts/` as a table."""
        if self._run is None:
            return
        row = {key: value for key, value in metrics.items() if value is not None}
        line = to_verl(row) if self._names == "verl" else row
        if rollouts:
            line["rollouts"] = list(rollouts)
        if len(self._pending) == _MAX_PENDING:
            self._pending.popleft()
            self.lost += 1
        self._pending.append((int(metrics["step"]), line))
        if self._clock() >= self._not_before:
            self._send()

    def close(self) -> None:
        """Hand over what is left, and say how many calls failed and what was lost."""
        if self._run is not None:
            self._send()
            self.lost += len(self._pending)
            self._try("finish", lambda run: run.finish())
        if self.failures:
            lost = f", {self.lost} steps did not get there" if self.lost else ", every step got there in the end"
            self._note(f"wandb failed {self.failures} times{lost}; metrics.jsonl has every step")

    def _send(self) -> None:
        while self._pending:
            step, line = self._pending[0]
            if not self._try("log", partial(_log, step=step, line=line)):
                self._failures_in_a_row += 1
                delay = min(_FIRST_DELAY_SECONDS * 2 ** (self._failures_in_a_row - 1), _LONGEST_DELAY_SECONDS)
                self._not_before = self._clock() + delay
                return
            self._pending.popleft()
            self._failures_in_a_row = 0

    def _try(self, what: str, call: Callable[[Any], object]) -> bool:
        try:
            call(self._run)
        # Whatever a tracker raises, hours of training are worth more than its curve.
        except Exception as error:
            self.failures += 1
            kind = f"{what} {type(error).__name__}"
            if kind not in self._shown:
                self._shown.add(kind)
                self._note(f"wandb {what} failed and training goes on: {type(error).__name__}: {error}")
            return False
        return True


def _log(run: Any, step: int, line: Mapping[str, Any]) -> None:
    values = dict(line)
    if "rollouts" in values:
        import wandb

        rows = values["rollouts"]
        data = [[row[column] for column in _TABLE_COLUMNS] for row in rows]
        values["rollouts"] = wandb.Table(columns=list(_TABLE_COLUMNS), data=data)
    # wandb's own step lies under every chart; it drops a line whose step does not grow, as after a resume.
    if step >= run.step:
        run.log(values, step=step)
    else:
        run.log(values)


def start_tracker(
    settings: Tracking,
    folder: Path,
    config: Mapping[str, Any],
    run_id: str | None = None,
    note: Note = print_note,
) -> Tracker:
    """Begin a wandb run named after `folder`, or go on with `run_id`; offline files go to `folder/wandb`.

    Curves are drawn over our own `step`, because wandb drops lines whose own step does not grow, and after a resume
    from an earlier checkpoint it does not.

    Raises:
        UsageError: wandb is missing, or cannot start (not logged in, unreachable).
    """
    if settings.wandb == "off":
        return Tracker(None, note)
    check_tracking(settings)
    import wandb

    try:
        run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            group=settings.group,
            tags=list(settings.tags) or None,
            job_type="train",
            name=folder.resolve().name,
            id=run_id,
            resume="allow",
            mode=settings.wandb,
            dir=str(folder),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        axis = TO_VERL["step"] if settings.names == "verl" else "step"
        run.define_metric(axis)
        run.define_metric("*", step_metric=axis)
    except (wandb.errors.Error, OSError, ValueError) as error:
        raise UsageError(
            f"tracking.wandb: {settings.wandb} cannot start: {error}",
            hint="`wandb login` once, or set tracking.wandb to offline (`wandb sync` uploads later) or off",
        ) from error
    return Tracker(run, note, settings.names)
