"""From merged values to a `Recipe`, or to plain words about every key that is wrong."""

from __future__ import annotations

import difflib
import json
from typing import Any

from pydantic import ValidationError

from dapo_cli.recipe.layers import Layer, kind_of
from dapo_cli.recipe.origins import Origin, PlacedProblem
from dapo_cli.recipe.positions import KeyPath
from dapo_cli.recipe.schema import Recipe
from dapo_cli.recipe.words import SchemaNode, child_node, expected, properties, recipe_node


def validate(merged: Layer, file: Origin) -> Recipe | list[PlacedProblem]:
    """The recipe of `merged`, or every key that is unknown, missing or of the wrong kind.

    `file` is the place of a key whose section is missing as well.
    """
    try:
        # JSON mode: strict types, and yet a list where the schema has a tuple.
        return Recipe.model_validate_json(json.dumps(merged.data))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
    reported = {problem.key for problem in merged.problems}
    problems: dict[KeyPath, PlacedProblem] = {}
    for detail in details:
        path, node = _leaf(detail["loc"])
        if path not in problems and not _is_reported(path, reported, merged.data):
            message = _message(detail["type"], path, node, merged.data)
            problems[path] = PlacedProblem(_place(merged, path, file), _dotted(path), message)
    return list(problems.values())


def _is_reported(path: KeyPath, reported: set[str], data: dict[str, Any]) -> bool:
    """Whether the value at `path`, or one inside it, is already reported as unreadable, and so absent or null here."""
    key = ".".join(path)
    inside = any(other.startswith(f"{key}.") for other in reported)
    return inside or (key in reported and _value_at(data, path) is None)


def _leaf(location: tuple[int | str, ...]) -> tuple[KeyPath, SchemaNode]:
    """The schema's part of a pydantic location, without the marks it adds for alternatives and list items."""
    node = recipe_node()
    path: KeyPath = ()
    for part in location:
        child = child_node(node, part)
        if child is None:
            # An unknown key is the last part of a location inside a section.
            return ((*path, str(part)), {}) if properties(node) and part == location[-1] else (path, node)
        path, node = (*path, str(part)), child
    return path, node


def _place(merged: Layer, path: KeyPath, file: Origin) -> Origin:
    """Where the key is stated, or a key inside it, else the nearest section around it."""
    inside = [origin for key, origin in merged.origins.items() if key[: len(path)] == path]
    around = [merged.origins[path[:length]] for length in range(len(path), 0, -1) if path[:length] in merged.origins]
    return [*inside, *around, file][0]


def _message(kind: str, path: KeyPath, node: SchemaNode, data: dict[str, Any]) -> str:
    if kind == "missing":
        description = node.get("description")
        what = "section" if properties(node) else "key"
        return f"required {what} is missing" + (f" ({description.rstrip('.')})" if description else "")
    if kind == "extra_forbidden":
        return f"unknown {'key' if len(path) > 1 else 'section'}{_did_you_mean(path)}"
    value = _value_at(data, path)
    return f"expected {expected(node)}, got {kind_of(value)}{_advice(value, node)}"


def _did_you_mean(path: KeyPath) -> str:
    name = path[-1]
    siblings = _siblings(path)
    close = difflib.get_close_matches(name, siblings, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    owners = [section for section in properties(recipe_node()) if name in _siblings((section, name))]
    if owners and len(path) <= 2:
        return f"; did you mean {owners[0]}.{name}?"
    return f"; known are {', '.join(siblings)}"


def _siblings(path: KeyPath) -> list[str]:
    node = recipe_node()
    for part in path[:-1]:
        node = child_node(node, int(part) if part.isdigit() else part) or {}
    return list(properties(node))


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[int(part)] if isinstance(data, list) else data.get(part)
    return data


def _advice(value: Any, node: SchemaNode) -> str:
    """What to write instead, where the intention is plain."""
    text = expected(node)
    if isinstance(value, str):
        choices = [choice for choice in node.get("enum", []) if isinstance(choice, str)]
        close = difflib.get_close_matches(value, choices, n=1)
        if close:
            return f"; did you mean {close[0]}?"
        if "true or false" in text and value.lower() in ("yes", "on", "no", "off"):
            return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
        if "number" in text and _is_number(value):
            return "; write it without quotes"
    if isinstance(value, float) and value.is_integer() and "whole number" in text:
        return f"; write {int(value)}"
    if "text" in text and not isinstance(value, str) and isinstance(value, int | float):
        return "; put it in quotes"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _dotted(path: KeyPath) -> str:
    """`prompt.few_shot[0].answer` of its parts."""
    return path[0] + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path[1:])
