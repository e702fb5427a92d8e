"""A contradiction between keys of a recipe, and what a rule that looks for one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dapo_cli.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Problem:
    """A contradiction between keys."""

    keys: tuple[str, ...]
    """Dotted; it is reported at the one that was stated last, in doubt at the first."""
    message: str
    suggestion: str

    @property
    def key(self) -> str:
        """The key that is most likely wrong."""
        return self.keys[0]


Rule = Callable[[Recipe], Iterator[Problem]]
