"""What the schema wants, in plain words: read off the JSON schema, so that a new key needs no new text."""

from __future__ import annotations

from functools import cache
from typing import Any

from dapo_cli.recipe.schema import Recipe

SchemaNode = dict[str, Any]


@cache
def _schema() -> SchemaNode:
    return Recipe.model_json_schema()


def recipe_node() -> SchemaNode:
    """The JSON schema of the recipe as a whole."""
    return _schema()


def _resolve(node: SchemaNode) -> SchemaNode:
    if "$ref" not in node:
        return node
    name = node["$ref"].rsplit("/", 1)[-1]
    return {**_schema()["$defs"][name], **{key: value for key, value in node.items() if key != "$ref"}}


def _alternatives(node: SchemaNode) -> list[SchemaNode]:
    return [_resolve(choice) for choice in node.get("anyOf", [node])]


def properties(node: SchemaNode) -> dict[str, SchemaNode]:
    """The keys of a section; empty for anything else."""
    for choice in _alternatives(_resolve(node)):
        if "properties" in choice:
            keys: dict[str, SchemaNode] = choice["properties"]
            return keys
    return {}


def child_node(node: SchemaNode, part: str | int) -> SchemaNode | None:
    """The schema of a key of a section or of the items of a list; None when there is none."""
    if isinstance(part, str):
        child = properties(node).get(part)
        return None if child is None else _resolve(child)
    items = [choice["items"] for choice in _alternatives(_resolve(node)) if "items" in choice]
    return _resolve(items[0]) if items else None


def expected(node: SchemaNode) -> str:
    """What a value may be.

    >>> expected({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]})
    'a whole number greater than 0, or null'
    """
    parts = [_one(choice) for choice in _alternatives(_resolve(node))]
    return ", or ".join(parts)


def _one(node: SchemaNode) -> str:
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return f"one of {', '.join(str(choice) for choice in node['enum'])}"
    if node.get("type") == "array":
        return f"a list of {_plural(_resolve(node['items']))}"
    if node.get("type") == "object":
        return "a section"
    names = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
    return names.get(str(node.get("type")), "null") + _range(node)


def _plural(node: SchemaNode) -> str:
    names = {"integer": "whole numbers", "string": "texts", "object": "sections"}
    return names[node["type"]] + _range(node)


def _range(node: SchemaNode) -> str:
    words = {
        "exclusiveMinimum": "greater than",
        "minimum": "of at least",
        "exclusiveMaximum": "less than",
        "maximum": "of at most",
    }
    limits = [f"{text} {node[key]:g}" for key, text in words.items() if key in node]
    return " " + " and ".join(limits) if limits else ""
