"""A dumped recipe loads back equal, whatever text it holds."""

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from dapo_cli.recipe.dump import to_yaml
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
arguments = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | texts, max_size=3)


def test_every_packaged_recipe_survives_the_round_trip(tmp_path):
    for name in packaged_names():
        recipe = load_recipe(name).recipe
        (tmp_path / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
        assert load_recipe(tmp_path / "recipe.yaml").recipe == recipe


def test_every_key_is_written_and_knows_its_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(load_recipe("demo").recipe), encoding="utf-8")
    loaded = load_recipe(path)
    assert {origin.kind for origin in loaded.origins.values()} == {"file"}
    lines = path.read_text(encoding="utf-8").splitlines()
    for key in leaf_values(loaded.recipe):
        assert lines[loaded.origins[key].line - 1].strip().startswith(f"{key.rsplit('.', 1)[-1]}:")


TAKEN = {"messages", "conversation", "tokenize", "add_generation_prompt", "chat_template", "tools"}
"""Refused as template arguments: rendering sets them."""


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="off", template_arguments={"1e6": "1e6", "on": "null", "a\x85b": "\u2028\r\n\0"})
@given(text=texts, template_arguments=arguments)
def test_any_text_survives_the_round_trip(text, template_arguments, tmp_path):
    assume(not TAKEN & template_arguments.keys())
    recipe = load_recipe("demo").recipe
    prompt = recipe.prompt.model_copy(update={"system": text, "template_arguments": template_arguments})
    changed = recipe.model_copy(update={"prompt": prompt})
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(changed), encoding="utf-8")
    assert load_recipe(path).recipe == changed
