"""The keys of a recipe, dotted, and what differs between two recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from dapo_cli.recipe.schema import Recipe

CHANGEABLE_ON_RESUME = (
    "train.steps",
    "train.stop_after_seconds",
    "eval.",
    "checkpoint.",
    "tracking.",
    "backend.",
    "preflight.",
    "dataset.prepared",
)
"""Keys, and sections (with a dot), that decide how long a run goes on and what is seen of it, not what it computes."""


def leaf_values(recipe: Recipe) -> dict[str, Any]:
    """Every key that is not itself a section, dotted, in the order of the schema. Lists are one value.

    An optional section (`model.lora`, `train.emulated_partition`) is a leaf when it is null, else its keys are.
    """
    return dict(_leaves(recipe, ""))


def _leaves(section: BaseModel, prefix: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            leaves.extend(_leaves(value, f"{prefix}{name}."))
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves


@dataclass(frozen=True, slots=True)
class Difference:
    """One key that two recipes do not share; None stands for null and for a key that is absent."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r}"


def recipe_differences(old: Recipe, new: Recipe) -> list[Difference]:
    """Every key whose value changed, in the order of the schema."""
    before, after = leaf_values(old), leaf_values(new)
    keys = dict.fromkeys([*before, *after])
    differences = [Difference(key, before.get(key), after.get(key)) for key in keys]
    return [difference for difference in differences if difference.old != difference.new]


def forbidden_on_resume(differences: Sequence[Difference]) -> list[Difference]:
    """The differences that would make a resumed run another run.

    >>> forbidden_on_resume([Difference("train.steps", 10, 20), Difference("rollout.seed", 0, 1)])
    [Difference(key='rollout.seed', old=0, new=1)]
    """
    return [
        difference
        for difference in differences
        if not any(
            difference.key == allowed or (allowed.endswith(".") and difference.key.startswith(allowed))
            for allowed in CHANGEABLE_ON_RESUME
        )
    ]
