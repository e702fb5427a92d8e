"""From the file of a mechanism to a checked definition and a recipe for each arm; every mistake has its line."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from dapo_cli.errors import UsageError
from dapo_cli.mechanisms import schema
from dapo_cli.mechanisms.schema import Mechanism
from dapo_cli.recipe.combinations import combination_problems
from dapo_cli.recipe.ignored import ignored_problems
from dapo_cli.recipe.layers import Layer, file_layers, kind_of, merge
from dapo_cli.recipe.origins import DEFAULT, Origin, PlacedProblem, shown, usage_error
from dapo_cli.recipe.packaged import find_recipe
from dapo_cli.recipe.positions import Document, KeyPath, parse_yaml
from dapo_cli.recipe.schema import Recipe
from dapo_cli.recipe.validation import validate
from dapo_cli.resources import resource_folder

Arm = Literal["baseline", "treatment"]
FOLDER = "mechanisms"
"""Among the recipes; its files are no recipes of runs, and have the schema of `schema.py`."""
SHARED = "common"
"""The recipe beside the mechanisms that they extend."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A mechanism and the recipes of its two arms."""

    name: str
    mechanism: Mechanism
    baseline: Recipe
    treatment: Recipe


def mechanism_names() -> list[str]:
    """The packaged mechanisms.

    >>> "dynamic_sampling" in mechanism_names()
    True
    """
    files = (resource_folder("recipes") / FOLDER).glob("*.yaml")
    return sorted(path.stem for path in files if path.stem != SHARED)


def find_mechanism(reference: str) -> Path:
    """The file of a packaged mechanism, or a file of the user's own.

    Raises:
        UsageError: there is neither.
    """
    if reference.endswith(".yaml") and Path(reference).is_file():
        return Path(reference)
    if reference in mechanism_names():
        return resource_folder("recipes") / FOLDER / f"{reference}.yaml"
    close = difflib.get_close_matches(reference, mechanism_names(), n=1)
    suggestion = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(
        f"{reference}: neither a file nor a packaged mechanism{suggestion}",
        hint=f"Packaged mechanisms: {', '.join(mechanism_names())}",
    )


def load_definition(path: Path) -> Definition:
    """Read and check a mechanism and both of its recipes.

    Raises:
        UsageError: everything that is wrong, a line each, as `file:line: key: what is wrong`.
    """
    source = shown(path)
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"), source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: cannot be read: {error}") from error
    problems = [_placed(source, document, key, message) for _, key, message in document.problems]
    if problems:
        raise usage_error(problems)
    mechanism = _mechanism(document, source)
    baseline, treatment = (_recipe(path, document, mechanism, arm) for arm in get_args(Arm))
    _check_metrics(mechanism, baseline, document, source)
    return Definition(path.stem, mechanism, baseline, treatment)


def _mechanism(document: Document, source: str) -> Mechanism:
    data = document.value
    if not isinstance(data, dict):
        raise UsageError(f"{source}:1: expected the keys {', '.join(Mechanism.model_fields)}, got {kind_of(data)}")
    try:
        return Mechanism.model_validate_json(json.dumps(data))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
    problems = []
    for detail in details:
        # Of a task the location names the kind as well, which is no key.
        kind = _task_kind(data) if detail["loc"][:1] == ("task",) else None
        place = tuple(str(part) for index, part in enumerate(detail["loc"]) if not (index == 1 and part == kind))
        message = detail["msg"][0].lower() + detail["msg"][1:]
        if detail["type"] == "extra_forbidden":
            message = f"unknown key{_did_you_mean(place, kind)}"
        elif detail["type"] == "missing":
            message = "required key is missing"
        problems.append(_placed(source, document, place, message))
    raise usage_error(problems)


def _task_kind(data: dict[str, Any]) -> Any:
    task = data.get("task")
    return task.get("kind") if isinstance(task, dict) else None


def _placed(source: str, document: Document, key: KeyPath, message: str) -> PlacedProblem:
    around = [document.lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in document.lines]
    return PlacedProblem(Origin("file", source, [*around, 1][0]), ".".join(key), message)


def _did_you_mean(place: KeyPath, kind: str | None) -> str:
    """A suggestion for an unknown key, from the section it stands in."""
    sections = {"metric": schema.Metric, "measure": schema.Measure, "also": schema.Prediction}
    section: Any = Mechanism
    if len(place) > 1:
        tasks = {get_args(task.model_fields["kind"].annotation)[0]: task for task in get_args(get_args(schema.Task)[0])}
        section = schema.Metric if "metric" in place else sections.get(place[0]) or tasks[kind]
    close = difflib.get_close_matches(place[-1], section.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(section.model_fields)}"


def _recipe(path: Path, document: Document, mechanism: Mechanism, arm: Arm) -> Recipe:
    """The recipe of an arm: what the mechanism extends, then its `recipe`, then the arm's own sections."""
    parent, _ = find_recipe(mechanism.extends, path.parent)
    layers = file_layers(parent)
    source = shown(path)
    for section in ("recipe", arm):
        layers.append(_section_layer(document, source, section, len(layers) + 1))
    merged, file = merge(layers), Origin("file", source, None, len(layers))
    recipe = validate(merged, file)
    if isinstance(recipe, list) or merged.problems:
        raise usage_error([*merged.problems, *(recipe if isinstance(recipe, list) else [])])
    stated = {".".join(key): origin for key, origin in merged.origins.items()}
    wrong = [*combination_problems(recipe), *ignored_problems(recipe, stated)]
    if wrong:
        raise usage_error(
            PlacedProblem(stated.get(each.key, DEFAULT), each.key, f"{each.message}; {each.suggestion}")
            for each in wrong
        )
    return recipe


def _section_layer(document: Document, source: str, section: str, number: int) -> Layer:
    layer = Layer(data=document.value.get(section) or {})
    for key, line in document.lines.items():
        if key[0] == section and len(key) > 1:
            layer.origins[key[1:]] = Origin("file", source, line, number)
    for name, value in layer.data.items():
        if not isinstance(value, dict):
            place = layer.origins[(name,)]
            layer.problems.append(
                PlacedProblem(place, f"{section}.{name}", f"expected a section, got {kind_of(value)}")
            )
    return layer


def _check_metrics(mechanism: Mechanism, recipe: Recipe, document: Document, source: str) -> None:
    """Metrics that the run could not give.

    Raises:
        UsageError: one of them.
    """
    problems = []
    for number, metric in enumerate(mechanism.metrics):
        key: KeyPath = ("metric",) if number == 0 else ("also", str(number - 1), "metric")
        if metric.value != "share" and mechanism.measure is None:
            problems.append(_placed(source, document, key, f"{metric.value} needs the section measure"))
        if metric.value == "share" and mechanism.task.kind == "many_answers":
            problems.append(_placed(source, document, key, "the task many_answers marks nothing: it has no share"))
        if metric.until is not None and metric.at_step is not None:
            problems.append(_placed(source, document, key, "until and at_step exclude each other"))
        if metric.at_step is not None and metric.at_step > recipe.train.steps:
            problems.append(_placed(source, document, key, f"at_step is beyond train.steps {recipe.train.steps}"))
        if metric.at_step is not None and mechanism.measure is not None and metric.at_step % mechanism.measure.every:
            problems.append(_placed(source, document, key, "at_step is no multiple of measure.every"))
    if problems:
        raise usage_error(problems)
