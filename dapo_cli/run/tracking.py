"""Metrics to Weights & Biases, when the recipe asks for it. A sink: it is told, and never asked."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Tracking
from dapo_cli.run.files import Note, print_note


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
    """Passes each step's line on. Once started, a failure is shown and counted and never stops the run."""

    def __init__(self, run: Any | None, note: Note) -> None:
        self._run = run
        self._note = note
        self.failures = 0
        """How many calls failed."""

    @property
    def run_id(self) -> str | None:
        """The id that continues the same wandb run after a resume; None when tracking is off."""
        return None if self._run is None else str(self._run.id)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Pass one line of metrics on; null values are left out."""
        if self._run is not None:
            self._try("log", lambda run: run.log({key: value for key, value in metrics.items() if value is not None}))

    def close(self) -> None:
        """Hand over what is left, and say how many calls failed."""
        if self._run is not None:
            self._try("finish", lambda run: run.finish())
        if self.failures:
            self._note(f"wandb failed {self.failures} times; metrics.jsonl has every step")

    def _try(self, what: str, call: Any) -> None:
        try:
            call(self._run)
        # Whatever a tracker raises, hours of training are worth more than its curve.
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                self._note(f"wandb {what} failed and training goes on: {type(error).__name__}: {error}")


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
            name=folder.resolve().name,
            id=run_id,
            resume="allow",
            mode=settings.wandb,
            dir=str(folder),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
    except (wandb.errors.Error, OSError, ValueError) as error:
        raise UsageError(
            f"tracking.wandb: {settings.wandb} cannot start: {error}",
            hint="`wandb login` once, or set tracking.wandb to offline (`wandb sync` uploads later) or off",
        ) from error
    return Tracker(run, note)
