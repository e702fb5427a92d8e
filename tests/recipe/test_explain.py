"""What `dapo check` shows."""

import dataclasses
import io
import json

from rich.console import Console

from dapo_cli.recipe.explain import check_json, render_check
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.loading import load_recipe


def rendered(loaded, width=120):
    """The report as text."""
    console = Console(file=io.StringIO(), width=width)
    console.print(render_check(loaded))
    return console.file.getvalue()


def test_every_setting_is_shown_with_where_it_came_from(write_recipe):
    loaded = load_recipe(write_recipe(("", "prompt: {system: '[red]'}\n")), ["train.steps=12"])
    lines = [line.split() for line in rendered(loaded).splitlines()]
    assert ["steps", "12", "--set", "train.steps=12"] in lines
    assert ["learning_rate", "1e-06", "x.yaml:14"] in lines
    assert ["system", "[red]", "x.yaml:15"] in lines
    assert ["few_shot_separator", "'\\n\\n'", "default"] in lines
    assert ["rollouts", "per", "step", "256", "prompts_per_step", "x", "group_size"] in lines
    shown = {line[0] for line in lines if line}
    assert {key.split(".", 1)[1] for key in leaf_values(loaded.recipe)} <= shown


def test_an_optional_section_is_shown_as_null_or_key_by_key(write_recipe):
    edit = ("{path: toy}", "{path: toy, lora: {rank: 4}}")
    lines = [line.split() for line in rendered(load_recipe(write_recipe(edit))).splitlines()]
    assert ["lora.rank", "4", "x.yaml:1"] in lines
    assert ["lora.sync", "adapter", "default"] in lines
    null = [line.split() for line in rendered(load_recipe("x.yaml", ["model.lora=null"])).splitlines()]
    assert ["lora", "null", "--set", "model.lora=null"] in null
    assert not any(line[0].startswith("lora.") for line in null if line)


def test_the_processes_of_a_cluster_follow():
    lines = [line.split() for line in rendered(load_recipe("dapo_qwen32b")).splitlines()]
    assert any(line[:3] == ["policy", "ranks", "128"] for line in lines)
    assert any(line[:3] == ["vLLM", "replicas", "32"] for line in lines)


def test_notes_are_shown_first():
    loaded = dataclasses.replace(load_recipe("demo"), notes=("something to know",))
    assert rendered(loaded, 400).splitlines()[0].rstrip() == f"note: {loaded.notes[0]}"


def test_the_same_content_as_plain_values(write_recipe):
    loaded = load_recipe(write_recipe())
    content = json.loads(json.dumps(check_json(loaded)))
    assert content["recipe"] == loaded.recipe.model_dump(mode="json")
    assert content["origins"]["train.steps"] == "x.yaml:9"
    assert content["origins"]["eval.samples"] == "default"
    assert content["derived"]["updates per step"] == 4
    assert (content["name"], content["path"], content["packaged"], content["notes"]) == ("x", "x.yaml", False, [])
