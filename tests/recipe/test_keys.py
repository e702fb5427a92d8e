"""What differs between two recipes, and what a resumed run may change."""

from dapo_cli.recipe.keys import Difference, forbidden_on_resume, leaf_values, recipe_differences
from dapo_cli.recipe.loading import load_recipe


def test_equal_recipes_do_not_differ():
    assert recipe_differences(load_recipe("demo").recipe, load_recipe("demo").recipe) == []


def test_differences_are_named_in_the_order_of_the_schema(write_recipe):
    partition = "  loss_denominator: microbatch\n  emulated_partition: {ranks: 2, tokens_per_microbatch: 4096}\n"
    old = load_recipe(write_recipe(("", partition))).recipe
    new = load_recipe(write_recipe(), ["rollout.seed=1"]).recipe
    assert recipe_differences(old, new) == [
        Difference("rollout.seed", 0, 1),
        Difference("train.loss_denominator", "microbatch", "minibatch"),
        Difference("train.emulated_partition.ranks", 2, None),
        Difference("train.emulated_partition.tokens_per_microbatch", 4096, None),
    ]
    assert str(Difference("rollout.seed", 0, 1)) == "rollout.seed: 0 -> 1"


def test_an_optional_section_is_one_key_while_it_is_null_and_its_own_keys_else(write_recipe):
    without = load_recipe(write_recipe()).recipe
    adapters = load_recipe(write_recipe(("{path: toy}", "{path: toy, lora: {rank: 4}}"))).recipe
    assert leaf_values(without)["model.lora"] is None
    assert {key: value for key, value in leaf_values(adapters).items() if key.startswith("model.lora")} == {
        "model.lora.rank": 4,
        "model.lora.alpha": 32.0,
        "model.lora.targets": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "model.lora.sync": "adapter",
    }
    differences = recipe_differences(adapters, without)
    assert [difference.key for difference in differences] == [
        "model.lora.rank",
        "model.lora.alpha",
        "model.lora.targets",
        "model.lora.sync",
    ]
    assert forbidden_on_resume(differences) == differences


def test_a_resume_may_change_length_and_observation_and_nothing_else():
    keys = leaf_values(load_recipe("demo").recipe)
    refused = {difference.key for difference in forbidden_on_resume([Difference(key, 0, 1) for key in keys])}
    assert set(keys) - refused == {"train.steps", "train.stop_after_seconds", "dataset.prepared"} | {
        key for key in keys if key.split(".")[0] in ("eval", "checkpoint", "tracking", "backend", "preflight")
    }
