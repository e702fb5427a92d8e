"""The JSON schema that editors check recipes against: `python -m dapo_cli.recipe.json_schema > recipes/schema.json`."""

from __future__ import annotations

import json
from typing import Any

from dapo_cli.recipe.schema import Recipe

_EXTENDS = "Recipe to start from: a path relative to this file, or the name of a packaged recipe."
_RESOLVED = "Written by dapo into run directories: every key is stated, also those that another key switches off."


def recipe_json_schema() -> dict[str, Any]:
    """The schema of a recipe file. Keys are required only where there is no `extends` to inherit them from."""
    generated = Recipe.model_json_schema()
    sections = {name: node["$ref"].rsplit("/", 1)[-1] for name, node in generated["properties"].items()}
    definitions = generated["$defs"]
    with_required = {name: model for name, model in sections.items() if "required" in definitions[model]}
    required = {name: definitions[model].pop("required") for name, model in with_required.items()}
    for node in _objects(generated):
        if isinstance(node.get("title"), str):
            del node["title"]
    for name, model in sections.items():
        definition = definitions[model]
        generated["properties"][name] = {"$ref": f"#/$defs/{model}", "description": definition["description"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "DAPO recipe",
        "description": generated["description"],
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "extends": {"type": "string", "minLength": 1, "description": _EXTENDS},
            "resolved": {"const": True, "description": _RESOLVED},
            **generated["properties"],
        },
        "if": {"not": {"required": ["extends"]}},
        "then": {
            "required": generated["required"],
            "properties": {name: {"required": keys} for name, keys in required.items()},
        },
        "$defs": definitions,
    }


def _objects(value: Any) -> list[dict[str, Any]]:
    """Every schema object inside `value`, outermost first."""
    if isinstance(value, dict):
        return [value, *(inner for child in value.values() for inner in _objects(child))]
    if isinstance(value, list):
        return [inner for child in value for inner in _objects(child)]
    return []


if __name__ == "__main__":
    print(json.dumps(recipe_json_schema(), indent=2))
