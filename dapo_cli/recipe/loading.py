"""From a file, a packaged name and overrides to a checked recipe that knows where each value came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.errors import UsageError
from dapo_cli.recipe.combinations import combination_problems, schedule_notes
from dapo_cli.recipe.contradiction import Problem
from dapo_cli.recipe.ignored import ignored_problems
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.layers import file_layers, merge, override_layer
from dapo_cli.recipe.origins import DEFAULT, Origin, PlacedProblem, shown, usage_error
from dapo_cli.recipe.packaged import find_recipe
from dapo_cli.recipe.schema import Recipe
from dapo_cli.recipe.validation import validate


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe and where it came from."""

    recipe: Recipe
    name: str
    """The file's stem; the default run directory is `runs/<name>`."""
    path: Path
    packaged: bool
    """Whether a name was resolved to a packaged recipe."""
    origins: Mapping[str, Origin]
    """By dotted key, for every key that is not a section."""
    notes: tuple[str, ...]
    """What the user should be told: how a name was resolved, settings that are allowed and probably not meant."""


def load_recipe(reference: str | Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load and check the recipe file `reference`, or the packaged recipe of that name.

    `overrides` are `section.key=value`, the value in YAML; the last one wins.

    >>> load_recipe("demo", ["train.learning_rate=1e-4"]).recipe.train.learning_rate
    0.0001

    Raises:
        UsageError: no such recipe, or every problem of its keys, one a line as `file:line: key: what is wrong`.
    """
    path, packaged = find_recipe(reference)
    files = file_layers(path)
    top = max(len(files), 1) + 1
    merged = merge([*files, *(override_layer(override, top) for override in overrides)])
    file = Origin("file", shown(path), None, len(files))
    recipe = validate(merged, file)
    if isinstance(recipe, list):
        raise usage_error([*merged.problems, *recipe])
    if merged.problems:
        raise usage_error(merged.problems)
    stated = {".".join(key): origin for key, origin in merged.origins.items()}
    contradictions = [*combination_problems(recipe), *ignored_problems(recipe, stated)]
    if contradictions:
        raise usage_error(_placed(problem, stated, file) for problem in contradictions)
    return LoadedRecipe(
        recipe=recipe,
        name=path.stem,
        path=path,
        packaged=packaged,
        origins={key: stated.get(key, DEFAULT) for key in leaf_values(recipe)},
        notes=(*merged.notes, *schedule_notes(recipe)),
    )


def key_error(loaded: LoadedRecipe, keys: str | tuple[str, ...], message: str, hint: str | None = None) -> UsageError:
    """The error for a check that needs more than the recipe, in the form of `load_recipe`'s own.

    Of several `keys` it is reported at the one that was stated last.
    For a recipe restored from a run directory, load its `recipe.yaml` and the lines are those of that file.
    """
    problem = Problem((keys,) if isinstance(keys, str) else keys, message, "")
    file = Origin("file", shown(loaded.path))
    return usage_error([_placed(problem, loaded.origins, file)], hint)


def _placed(problem: Problem, origins: Mapping[str, Origin], file: Origin) -> PlacedProblem:
    """`problem` at the one of its keys that was stated last; a default is reported at its section, else at the file."""
    key = max(problem.keys, key=lambda key: origins.get(key, DEFAULT).layer)
    origin = origins.get(key, DEFAULT)
    message = f"{problem.message}; {problem.suggestion}" if problem.suggestion else problem.message
    if origin.kind == "default":
        return PlacedProblem(origins.get(key.split(".")[0], file), key, f"{message} (the value is the default)")
    return PlacedProblem(origin, key, message)
