"""Where a value of a recipe was stated, and problems reported at that place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dapo_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that decided a value.

    >>> str(Origin("file", "recipes/demo.yaml", line=41, layer=1))
    'recipes/demo.yaml:41'
    """

    kind: Literal["file", "set", "default"]
    source: str
    """The file as shown to the user, or the text of the override."""
    line: int | None = None
    layer: int = 0
    """Which statement wins: 0 for defaults, 1 for the root of the `extends` chain, and so on; overrides are highest."""

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT = Origin("default", "default")


@dataclass(frozen=True, slots=True)
class PlacedProblem:
    """One thing that is wrong with a recipe."""

    origin: Origin
    key: str
    """Dotted key; empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.origin), self.key, self.message) if part)


def usage_error(problems: Iterable[PlacedProblem], hint: str | None = None) -> UsageError:
    """One error that lists every problem, a line each, in the order of files, then lines, then overrides."""
    unique = dict.fromkeys(sorted(problems, key=lambda problem: (problem.origin.layer, problem.origin.line or 0)))
    return UsageError("\n".join(str(problem) for problem in unique), hint)


def shown(path: Path) -> str:
    """`path` as users read it: relative to the working directory where it is inside it, else absolute."""
    absolute = path.resolve()
    folder = Path.cwd().resolve()
    return str(absolute.relative_to(folder) if absolute.is_relative_to(folder) else absolute)
