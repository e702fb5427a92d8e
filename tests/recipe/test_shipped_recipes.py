"""The shipped recipes against the published runs they repeat, and the sources they give for every setting."""

import re

import pytest

from dapo_cli.recipe.keys import leaf_values, recipe_differences
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names
from dapo_cli.resources import resource_folder

# run_dapo_qwen2.5_32b.sh at verl 4f80e465, and the defaults of that commit that it leaves in force.
PUBLIC_RUN = {
    "model.path": "Qwen/Qwen2.5-32B",
    "model.dtype": "bfloat16",
    "model.activation_checkpointing": True,
    "model.lora": None,
    "dataset.shuffle_seed": 1,
    "prompt.max_prompt_tokens": 2048,
    "rollout.group_size": 16,
    "rollout.max_response_tokens": 20480,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "rollout.tensor_parallel": 4,
    "rollout.gpu_memory_utilization": 0.7,
    "rollout.enforce_eager": True,
    "reward.overlong_buffer_length": 4096,
    "reward.overlong_penalty_factor": 1.0,
    "reward.overlong_filter": False,
    "dynamic_sampling.enabled": True,
    "dynamic_sampling.refill": "whole_batches",
    "dynamic_sampling.problems_per_batch": 1536,  # 3 * 512
    "dynamic_sampling.max_drawn_problems": 15360,  # 10 batches
    "dynamic_sampling.when_exhausted": "stop",
    "advantage.normalize": "group_std",
    "train.prompts_per_step": 512,
    "train.prompts_per_minibatch": 32,
    "train.tokens_per_microbatch": 22528,
    "train.loss_denominator": "microbatch",
    "train.emulated_partition.ranks": 16,  # 128 GPUs / sequence parallelism of 8
    "train.emulated_partition.tokens_per_microbatch": 180224,  # 22528 * 8
    "train.clip_ratio_low": 0.2,
    "train.clip_ratio_high": 0.28,
    "train.dual_clip_ratio": 10.0,
    "train.learning_rate": 1e-6,
    "train.warmup_steps": 10,
    "train.warmup_from_zero": True,
    "train.adam_beta1": 0.9,
    "train.adam_beta2": 0.999,
    "train.adam_epsilon": 1e-8,
    "train.weight_decay": 0.1,
    "train.max_grad_norm": 1.0,
    "eval.samples": 32,
    "eval.every": 5,
    "eval.before_training": True,
    "checkpoint.every": 5,
    "checkpoint.keep_last": "all",
    "backend.nodes": 16,
    "backend.gpus_per_node": 8,
    "backend.placement": "colocated",
    "backend.ranks_per_shard_group": None,
    "backend.offload": ("parameters", "optimizer"),
}


def changed(old, new):
    """What `new` has in place of the settings of `old`, by key."""
    differences = recipe_differences(load_recipe(old).recipe, load_recipe(new).recipe)
    return {difference.key: difference.new for difference in differences}


def test_the_public_run_has_every_setting_of_its_script():
    values = leaf_values(load_recipe("dapo_qwen32b_public_2025_05").recipe)
    assert {key: values[key] for key in PUBLIC_RUN} == PUBLIC_RUN


def test_the_public_run_differs_from_the_reference_in_what_it_did_otherwise_and_nothing_else():
    assert changed("dapo_qwen32b", "dapo_qwen32b_public_2025_05") == {
        "dataset.duplicates": "keep",
        "dataset.conflicts": "keep",
        "dynamic_sampling.refill": "whole_batches",
        "dynamic_sampling.problems_per_batch": 1536,
        "dynamic_sampling.when_exhausted": "stop",
        "train.loss_denominator": "microbatch",
        "train.emulated_partition.ranks": 16,
        "train.emulated_partition.tokens_per_microbatch": 180224,
        "train.warmup_steps": 10,  # 20 in the paper
        "train.warmup_from_zero": True,
        "checkpoint.keep_last": "all",
    }


def test_the_public_ablations_differ_by_what_they_take_away():
    assert changed("dapo_qwen32b_public_2025_05", "dapo_qwen32b_no_dynamic_sampling") == {
        "dynamic_sampling.enabled": False,
        "dynamic_sampling.problems_per_batch": None,
    }
    assert changed("dapo_qwen32b_no_dynamic_sampling", "dapo_qwen32b_early") == {
        "train.loss_denominator": "sequence",
        "train.emulated_partition.ranks": None,
        "train.emulated_partition.tokens_per_microbatch": None,
    }


def test_the_math_model_stays_within_its_4096_positions():
    recipe = load_recipe("dapo_qwen7b_math_8gpu").recipe
    assert recipe.prompt.max_prompt_tokens + recipe.rollout.max_response_tokens == 4096


@pytest.mark.parametrize("name", ["qwen2.5_7b_lora_80gb", "qwen2.5_1.5b_gsm8k_24gb"])
def test_one_gpu_has_adapters_and_a_vllm_engine_in_one_process(name):
    recipe = load_recipe(name).recipe
    assert (recipe.backend.kind, recipe.backend.device, recipe.rollout.engine) == ("local", "cuda", "vllm")
    assert recipe.model.lora.alpha / recipe.model.lora.rank == 2


def stated(name):
    """The keys that a recipe or one of those it extends states."""
    return {key for key, origin in load_recipe(name).origins.items() if origin.kind == "file"}


def test_the_smoke_run_has_every_setting_of_the_32b_run_and_its_kind_of_machine():
    assert stated("dapo_qwen32b") <= stated("smoke")
    reference, smoke = (leaf_values(load_recipe(name).recipe) for name in ("dapo_qwen32b", "smoke"))
    same = ("backend.kind", "rollout.engine", "dynamic_sampling.enabled", "train.loss_denominator")
    assert [smoke[key] for key in same] == [reference[key] for key in same]


def chain(name):
    """The lines of a recipe file and of those it extends, itself first."""
    path = resource_folder("recipes") / f"{name}.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    parent = next((line.removeprefix("extends: ") for line in lines if line.startswith("extends: ")), None)
    if parent is None:
        return [lines]
    folder = resource_folder("recipes")
    return [lines, *chain((path.parent / parent).resolve().relative_to(folder.resolve()).with_suffix("").as_posix())]


@pytest.mark.parametrize("name", packaged_names())
def test_every_setting_gives_its_source_and_every_source_is_explained(name):
    files = chain(name)
    heads = [line for lines in files for line in lines if line.startswith("#")]
    explained = set(re.findall(r"\[([A-Z])\]", " ".join(heads)))
    own = [origin for origin in load_recipe(name).origins.values() if origin.kind == "file"]
    numbers = {origin.line for origin in own if origin.source.endswith(f"recipes/{name}.yaml")}
    assert numbers
    for number in numbers:
        sources = re.findall(r"\[([A-Z])\]", files[0][number - 1].partition(" #")[2])
        assert sources, f"{name}.yaml:{number}: no source"
        assert set(sources) <= explained, f"{name}.yaml:{number}: {sources} not explained at the head"
