"""Where a recipe's values come from: files, parents, overrides, defaults."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo_cli.errors import UsageError
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.loading import key_error, load_recipe
from dapo_cli.recipe.packaged import packaged_names
from dapo_cli.recipe.schema import Recipe
from dapo_cli.resources import resource_folder


def origins(loaded, *keys):
    """The origins of `keys` as they are shown."""
    return [str(loaded.origins[key]) for key in keys]


def test_a_file_is_loaded_with_the_line_of_each_value(write_recipe):
    loaded = load_recipe(write_recipe(name="runs/mine.yaml"))
    assert (loaded.name, loaded.packaged, loaded.notes) == ("mine", False, ())
    assert loaded.path == Path("runs/mine.yaml")
    assert loaded.recipe.train.learning_rate == 1e-6
    assert origins(loaded, "model.path", "train.steps", "eval.every", "train.emulated_partition") == [
        "runs/mine.yaml:1",
        "runs/mine.yaml:9",
        "default",
        "default",
    ]
    assert list(loaded.origins) == list(leaf_values(loaded.recipe))


def test_a_parent_is_merged_key_by_key_and_lists_are_replaced(write_recipe):
    stops = "group_size: 8\n  stop_strings: [a, b, c]"
    arguments = "prompt: {template_arguments: {x: 1, y: {z: 2}}}\n"
    write_recipe(("group_size: 8", stops), ("", arguments), name="base/base.yaml")
    middle = "extends: base.yaml\nrollout: {stop_strings: [d]}\nprompt: {template_arguments: {y: {w: 3}}}\n"
    write_recipe(text=middle, name="base/middle.yaml")
    loaded = load_recipe(write_recipe(text="extends: base/middle.yaml\ntrain:\n  steps: 11\n"))
    assert loaded.recipe.rollout.stop_strings == ("d",)
    assert loaded.recipe.prompt.template_arguments == {"x": 1, "y": {"z": 2, "w": 3}}
    assert (loaded.recipe.train.steps, loaded.recipe.rollout.group_size) == (11, 8)
    keys = ("train.steps", "rollout.stop_strings", "rollout.group_size", "prompt.template_arguments")
    assert origins(loaded, *keys) == ["x.yaml:3", "base/middle.yaml:2", "base/base.yaml:4", "base/middle.yaml:3"]


def test_a_nested_section_can_be_turned_off_and_on(write_recipe):
    partition = "  loss_denominator: microbatch\n  emulated_partition: {ranks: 2, tokens_per_microbatch: 4096}\n"
    write_recipe(("", partition), name="base.yaml")
    off = "extends: base.yaml\ntrain: {loss_denominator: minibatch, emulated_partition: null}\n"
    loaded = load_recipe(write_recipe(text=off))
    assert loaded.recipe.train.emulated_partition is None
    assert origins(loaded, "train.emulated_partition") == ["x.yaml:2"]
    again = load_recipe("base.yaml", ["train.emulated_partition.ranks=4"])
    keys = ("train.emulated_partition.ranks", "train.emulated_partition.tokens_per_microbatch")
    assert origins(again, *keys) == ["--set train.emulated_partition.ranks=4", "base.yaml:16"]


def test_overrides_are_yaml_and_the_last_one_wins(write_recipe):
    overrides = ["train.steps=3", 'rollout.stop_strings=["\\n", "="]', "tracking.wandb=off", "train.steps=4"]
    loaded = load_recipe(write_recipe(), [*overrides, "train.learning_rate=1e-3", "prompt.system=a=b"])
    assert loaded.recipe.train.steps == 4
    assert loaded.recipe.rollout.stop_strings == ("\n", "=")
    assert loaded.recipe.tracking.wandb == "off"
    assert loaded.recipe.train.learning_rate == 0.001
    assert loaded.recipe.prompt.system == "a=b"
    assert origins(loaded, "train.steps", "tracking.wandb") == ["--set train.steps=4", "--set tracking.wandb=off"]


def test_a_section_that_is_only_overridden_needs_no_line_in_the_file(write_recipe):
    loaded = load_recipe(write_recipe(), ["eval.every=5"])
    assert (loaded.recipe.eval.every, origins(loaded, "eval.every")) == (5, ["--set eval.every=5"])


@pytest.mark.parametrize("name", packaged_names())
def test_every_packaged_recipe_loads_and_names_its_schema(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe(name)
    assert loaded.packaged
    assert loaded.notes == ()
    first_line = loaded.path.read_text(encoding="utf-8").splitlines()[0]
    schema = "../" * name.count("/") or "./"
    assert first_line == f"# yaml-language-server: $schema={schema}schema.json"


@pytest.mark.parametrize("name", packaged_names())
def test_every_setting_of_a_packaged_recipe_names_its_source(name):
    lines = (resource_folder("recipes") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if line.startswith("  ") and not line.startswith("      ") and " - " not in line]
    settings_of_file = [line for line in keys if not line.endswith(":")]  # a section inside has its sources within
    assert settings_of_file
    for line in settings_of_file:
        assert any(f"[{source}]" in line for source in "PSDTRO"), line


def test_the_packaged_recipes_are_the_demo_grpo_and_each_technique_alone():
    grpo = leaf_values(load_recipe("toy/naive_grpo").recipe)
    demo = leaf_values(load_recipe("demo").recipe)

    def changes(values):
        return {key: value for key, value in values.items() if value != grpo[key]}

    alone = {
        name: changes(leaf_values(load_recipe(f"toy/{name}").recipe))
        for name in ("clip_higher", "dynamic_sampling", "token_level_loss", "soft_overlong", "overlong_filter")
    }
    assert alone == {
        "clip_higher": {"train.clip_ratio_high": 0.28},
        "dynamic_sampling": {"dynamic_sampling.enabled": True},
        "token_level_loss": {"train.loss_denominator": "minibatch"},
        "soft_overlong": {"reward.overlong_buffer_length": 8},
        "overlong_filter": {"reward.overlong_filter": True},
    }
    # The paper's best runs leave overlong filtering out; DAPO is the other four together.
    together = {
        key: value for name, change in alone.items() if name != "overlong_filter" for key, value in change.items()
    }
    assert changes(demo) == together


def test_the_rungs_of_table_1_end_in_the_full_recipe():
    full = leaf_values(load_recipe("dapo_qwen32b").recipe)
    rungs = [name for name in packaged_names() if name.startswith("table1/")]
    left = [
        {key for key, value in leaf_values(load_recipe(name).recipe).items() if value != full[key]} for name in rungs
    ]
    dynamic, loss, clip = "dynamic_sampling.enabled", "train.loss_denominator", "train.clip_ratio_high"
    soft, filtered = "reward.overlong_buffer_length", "reward.overlong_filter"
    assert left == [
        {dynamic, loss, soft, clip},
        {dynamic, loss, soft, clip, filtered},
        {dynamic, loss, soft, filtered},
        {dynamic, loss},
        {dynamic},
        set(),
    ]


def test_a_file_goes_before_a_packaged_name(write_recipe):
    loaded = load_recipe(write_recipe(name="demo"))
    assert (loaded.packaged, loaded.recipe.train.steps) == (False, 10)


def test_a_file_extends_a_packaged_recipe_by_name(write_recipe):
    loaded = load_recipe(write_recipe(text="extends: toy/naive_grpo\ntrain: {steps: 3}\n"))
    assert (loaded.packaged, loaded.recipe.train.steps) == (False, 3)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("dem", "dem: neither a file nor a packaged recipe; did you mean demo?"),
        ("grpo", "grpo: neither a file nor a packaged recipe; did you mean toy/naive_grpo?"),
        ("recipes/demo.yaml", "recipes/demo.yaml: no such file; did you mean demo?"),
        (".", ".: a folder, not a recipe file"),
        ("", ": neither a file nor a packaged recipe"),
        ("x" * 400, f"{'x' * 400}: neither a file nor a packaged recipe"),
        ("~nobody-of-that-name", "~nobody-of-that-name: no such file"),
    ],
)
def test_an_unknown_name_lists_the_packaged_recipes(reference, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_recipe(reference)
    assert str(caught.value) == expected
    if "folder" not in expected:
        assert caught.value.hint == f"Packaged recipes: {', '.join(packaged_names())}"


def test_an_error_found_later_has_the_same_form(write_recipe):
    loaded = load_recipe(write_recipe(), ["rollout.group_size=4"])
    message = "2080 tokens are more than the model's 1024 positions"
    error = key_error(loaded, "rollout.max_response_tokens", message, "Lower it.")
    assert (str(error), error.hint, error.exit_code) == (
        f"x.yaml:5: rollout.max_response_tokens: {message}",
        "Lower it.",
        2,
    )
    assert str(key_error(loaded, "rollout.group_size", "odd")) == "--set rollout.group_size=4: rollout.group_size: odd"
    assert str(key_error(loaded, "eval.samples", "odd")) == "x.yaml: eval.samples: odd (the value is the default)"


def test_loading_imports_nothing_heavy():
    code = (
        "import sys; from dapo_cli.recipe import derived, dump, explain, json_schema, loading;"
        "loading.load_recipe('demo');"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'wandb', 'rich', 'numpy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
leaf_keys = st.sampled_from([*sorted(leaf_values(load_recipe("demo").recipe)), "extends", "resolved", "train", "x.y"])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.dictionaries(leaf_keys, values, max_size=4))
def test_any_values_give_a_recipe_or_a_usage_error(edits, tmp_path):
    recipe = load_recipe("demo").recipe.model_dump(mode="json")
    for key, value in edits.items():
        section, _, name = key.partition(".")
        if name and isinstance(recipe.setdefault(section, {}), dict):
            recipe[section][name] = value
        elif not name:
            recipe[section] = value
    path = tmp_path / "any.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8", newline="")
    with contextlib.suppress(UsageError):
        assert isinstance(load_recipe(path).recipe, Recipe)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab:-[]{}&*!?|>'\"#% \n\te.1~<", max_size=30))
def test_any_text_gives_a_recipe_or_a_usage_error(text, tmp_path):
    path = tmp_path / "any.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        load_recipe(path)
    with pytest.raises(UsageError):
        load_recipe("demo", [text])
