"""The schema for editors."""

import json

from dapo_cli.recipe.json_schema import recipe_json_schema
from dapo_cli.recipe.schema import Recipe
from dapo_cli.resources import resource_folder


def test_the_shipped_schema_is_current():
    shipped = json.loads((resource_folder("recipes") / "schema.json").read_text(encoding="utf-8"))
    assert shipped == recipe_json_schema(), "run: python -m dapo_cli.recipe.json_schema > recipes/schema.json"


def test_every_key_is_described():
    schema = recipe_json_schema()
    assert set(schema["properties"]) == {"extends", "resolved", *Recipe.model_fields}
    undescribed = [
        f"{name}.{key}"
        for name, definition in {"": schema, **schema["$defs"]}.items()
        for key, node in definition["properties"].items()
        if not node.get("description")
    ]
    assert undescribed == []


def test_a_recipe_that_extends_another_may_be_partial():
    schema = recipe_json_schema()
    assert "required" not in schema
    assert schema["if"] == {"not": {"required": ["extends"]}}
    assert schema["then"]["required"] == ["model", "dataset", "rollout", "dynamic_sampling", "train"]
    assert schema["then"]["properties"]["model"] == {"required": ["path"]}
    assert not any("required" in schema["$defs"][name] for name in ("Model", "Train", "Rollout"))
    assert schema["$defs"]["FewShotExample"]["required"] == ["problem", "answer"]
    assert schema["$defs"]["Train"]["additionalProperties"] is False
