"""Numbers that follow from a recipe."""

import pytest

from dapo_cli.recipe.derived import derived_numbers, learning_rate
from dapo_cli.recipe.loading import load_recipe


def train(**overrides):
    """The demo's train section with changes."""
    return load_recipe("demo", [f"train.{key}={value}" for key, value in overrides.items()]).recipe.train


def test_the_paper_warms_up_over_20_steps_and_reaches_the_full_rate_at_step_20():
    paper = train(learning_rate="1e-6", warmup_steps=20)
    rates = [learning_rate(paper, step) for step in (1, 10, 19, 20, 21, 1000)]
    # 1e-6 * k / 20
    assert rates == pytest.approx([5e-8, 5e-7, 9.5e-7, 1e-6, 1e-6, 1e-6], rel=1e-12)
    assert rates[3:] == [1e-6] * 3


def test_the_public_run_had_a_first_step_of_rate_0():
    public = train(learning_rate="1e-6", warmup_steps=10, warmup_from_zero="true")
    rates = [learning_rate(public, step) for step in (1, 2, 6, 10, 11, 12)]
    # 1e-6 * (k - 1) / 10: the full rate one step after the warm-up
    assert rates == pytest.approx([0.0, 1e-7, 5e-7, 9e-7, 1e-6, 1e-6], rel=1e-12)
    assert rates[0] == 0


def test_without_warm_up_the_rate_is_constant():
    assert [learning_rate(train(warmup_steps=0), step) for step in (1, 2, 40)] == [train().learning_rate] * 3


def test_steps_are_counted_from_1():
    with pytest.raises(ValueError, match="steps are counted from 1, got 0"):
        learning_rate(train(), 0)


def test_the_numbers_of_the_public_32b_run():
    recipe = load_recipe("dapo_qwen32b_public_2025_05").recipe
    numbers = {number.name: number.value for number in derived_numbers(recipe)}
    assert numbers == {
        "rollouts per step": 8192,  # 512 * 16
        "rollouts per update": 512,  # 32 * 16
        "updates per step": 16,  # 512 / 32
        "updates in all": 5120,  # 16 * 320
        "rollouts trained on in all": 2_621_440,  # 8192 * 320
        "longest sequence, tokens": 22528,  # 2048 + 20480
        "most tokens per step": 184_549_376,  # 8192 * 22528
        "most response tokens per step": 167_772_160,  # 8192 * 20480
        "longest sequences per micro-batch": 1,  # 22528 / 22528
        "most problems drawn per step": 15360,
        "most rollouts sampled per step": 245_760,  # 15360 * 16
        "fewest right answers of an accepted group": 1,
        "most right answers of an accepted group": 15,
        "share of informative groups that fills a step": 512 / 15360,
        "longest unpunished response, tokens": 16384,  # 20480 - 4096
        "learning rate of step 1": 0.0,
        "warm-up, steps": 10,
        "warm-up, updates": 160,  # 10 * 16
        "first step at the full learning rate": 11,
        "learning rate of the last step": 1e-6,
        "GPUs in all": 128,  # 16 * 8
        "policy ranks": 128,
        "vLLM replicas": 32,  # 128 / 4
        "GPUs per replica": 4,
        "rollouts per update and rank": 4.0,  # 512 / 128
    }


def test_a_cluster_of_cpus_and_none_at_all():
    smoke = {number.name: number.value for number in derived_numbers(load_recipe("smoke").recipe)}
    shape = ("GPUs in all", "policy ranks", "vLLM replicas", "GPUs per replica", "rollouts per update and rank")
    assert [smoke[name] for name in shape] == [0, 2, 1, 0, 32.0]  # 8 * 8 rollouts over 2 ranks
    local = {number.name for number in derived_numbers(load_recipe("demo").recipe)}
    assert not local & set(shape)


def test_without_dynamic_sampling_nothing_is_drawn_twice():
    numbers = {number.name: number.value for number in derived_numbers(load_recipe("toy/naive_grpo").recipe)}
    assert numbers["most problems drawn per step"] == 32
    assert "most right answers of an accepted group" not in numbers
    assert "longest unpunished response, tokens" not in numbers
