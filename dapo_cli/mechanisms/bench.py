"""Every run of the bench: pairs of both arms and the A/A control, each in a file of its own as soon as it is done."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dapo_cli.mechanisms.definition import Definition
from dapo_cli.mechanisms.runs import Curve, run_arm
from dapo_cli.mechanisms.tasks import FORMAT_VERSION
from dapo_cli.mechanisms.warm_start import warm_model
from dapo_cli.recipe.schema import Recipe
from dapo_cli.run.files import Note, write_atomic
from dapo_cli.run.manifest import versions
from dapo_cli.run.view import duration

ArmName = Literal["baseline", "treatment", "control"]
ARMS: tuple[ArmName, ...] = ("baseline", "treatment", "control")
"""control: the baseline once more, with other random numbers for the sampling; what it differs by is chance."""
_CONTROL_SEEDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """One training run of the bench."""

    name: str
    """Of the mechanism."""
    arm: ArmName
    pair: int
    """From 1; it is the seed of the problems' order and of the sampling."""
    definition: Definition = field(compare=False, repr=False)

    @property
    def recipe(self) -> Recipe:
        """The arm's recipe with the seeds of the pair."""
        recipe = self.definition.treatment if self.arm == "treatment" else self.definition.baseline
        seed = self.pair + (_CONTROL_SEEDS if self.arm == "control" else 0)
        return recipe.model_copy(
            update={
                "dataset": recipe.dataset.model_copy(update={"shuffle_seed": self.pair}),
                "rollout": recipe.rollout.model_copy(update={"seed": seed}),
            }
        )

    def file(self, out: Path) -> Path:
        """Where its curve is kept."""
        return out / self.name / f"{self.arm}_{self.pair}.json"

    @property
    def identity(self) -> str:
        """Equal for runs that give the same curve, as far as the definition decides it."""
        content = [
            FORMAT_VERSION,
            self.recipe.model_dump(mode="json"),
            self.definition.mechanism.model_dump(mode="json"),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def runs_of(definitions: Sequence[Definition], seeds: int | None) -> list[Run]:
    """All runs, pair by pair; `seeds` in place of what the mechanisms say."""
    return [
        Run(definition.name, arm, pair, definition)
        for definition in definitions
        for pair in range(1, (seeds or definition.mechanism.seeds) + 1)
        for arm in ARMS
    ]


def run_bench(runs: Sequence[Run], out: Path, note: Note) -> dict[Run, Curve]:
    """The curve of every run; those that are in `out` already are taken from there.

    Interrupted at any moment, the runs that were done are kept, and the next call goes on.
    """
    curves: dict[Run, Curve] = {}
    for run in runs:
        kept = _kept(run, out)
        if kept is not None:
            curves[run] = kept
    missing = [run for run in runs if run not in curves]
    if curves:
        note(f"{out}: {len(curves)} of {len(runs)} runs are there already")
    for done, run, seconds_left in _progress(missing, curves):
        left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
        note(f"run {done + 1} of {len(missing)}: {run.name}, {run.arm}, pair {run.pair}{left}")
        model = warm_model(run.definition.mechanism.task, out / "_models")
        curves[run] = run_arm(run.definition.mechanism, run.recipe, model, run.pair)
        _keep(run, curves[run], out)
    return curves


def _progress(missing: Sequence[Run], curves: dict[Run, Curve]) -> Iterator[tuple[int, Run, float | None]]:
    """Each run with the seconds that are left, from the mean of what its mechanism has taken so far."""
    for done, run in enumerate(missing):
        spent: dict[str, list[float]] = {}
        for other, curve in curves.items():
            spent.setdefault(other.name, []).append(curve.seconds)
        means = {name: sum(seconds) / len(seconds) for name, seconds in spent.items()}
        usual = sum(means.values()) / len(means) if means else None
        left = None if usual is None else sum(means.get(each.name, usual) for each in missing[done:])
        yield done, run, left


def _keep(run: Run, curve: Curve, out: Path) -> None:
    file = run.file(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"identity": run.identity, "written": time.time(), "versions": versions(), **asdict(curve)}
    write_atomic(file, json.dumps(content) + "\n")


def _kept(run: Run, out: Path) -> Curve | None:
    try:
        content: dict[str, Any] = json.loads(run.file(out).read_text(encoding="utf-8"))
        if content["identity"] != run.identity:
            return None
        return Curve(content["points"], content["ended"], content["seconds"])
    except (OSError, ValueError, KeyError):
        return None
