"""A key that another key switches off is refused where it is stated, and allowed where it is inherited."""

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.recipe.ignored import IGNORED
from dapo_cli.recipe.loading import load_recipe

CASES = [
    ("model.revision", "model: {path: toy}", "model: {path: toy, revision: main}"),
    ("prompt.system", "", "prompt: {format: plain, system: hi}\n"),
    ("prompt.chat_template", "", "prompt: {format: plain, chat_template: a.jinja}\n"),
    ("prompt.template_arguments", "", "prompt: {format: plain, template_arguments: {thinking: true}}\n"),
    ("prompt.few_shot_separator", "", "prompt: {few_shot_separator: x}\n"),
    ("prompt.few_shot_separator", "", "prompt: {format: plain, few_shot_separator: x}\n"),
    ("reward.on_verifier_error", "", "reward: {on_verifier_error: wrong}\n"),
    ("reward.workers", "", "reward: {scorer: [dapo, boxed], workers: 2}\n"),
    ("reward.time_limit_seconds", "", "reward: {scorer: integer, time_limit_seconds: 2}\n"),
    ("reward.memory_limit_bytes", "", "reward: {memory_limit_bytes: 1000000000}\n"),
    ("reward.overlong_penalty_factor", "", "reward: {overlong_penalty_factor: 1.0}\n"),
    ("reward.overlong_buffer_length", "", "reward: {overlong_penalty_factor: 0, overlong_buffer_length: 8}\n"),
    ("dynamic_sampling.refill", "problems: 320", "problems: 320\n  enabled: false\n  refill: one_for_one"),
    ("dynamic_sampling.min_correct", "problems: 320", "problems: 320\n  enabled: false\n  min_correct: 2"),
    ("dynamic_sampling.max_correct", "problems: 320", "problems: 320\n  enabled: false\n  max_correct: 2"),
    ("dynamic_sampling.when_exhausted", "problems: 320", "problems: 320\n  enabled: false\n  when_exhausted: stop"),
    ("dynamic_sampling.problems_per_batch", "problems: 320", "problems: 320\n  problems_per_batch: 64"),
    ("train.emulated_partition.ranks", "", "  emulated_partition: {ranks: 2, tokens_per_microbatch: 4096}\n"),
    ("train.warmup_from_zero", "warmup_steps: 2", "warmup_steps: 0\n  warmup_from_zero: true"),
    *(
        (f"backend.{key}", "", f"backend: {{{key}: {value}}}\n")
        for key, value in (
            ("nodes", 2),
            ("gpus_per_node", 8),
            ("policy_ranks", 2),
            ("engine_replicas", 2),
            ("placement", "separate"),
            ("ranks_per_shard_group", 8),
            ("offload", "[optimizer]"),
            ("timeout_seconds", 60),
        )
    ),
    ("checkpoint.keep_best", "", "checkpoint: {keep_last: all, keep_best: 2, best_metric: reward/mean}\n"),
    ("checkpoint.best_metric", "", "checkpoint: {best_metric: reward/mean}\n"),
    ("checkpoint.asynchronous", "", "checkpoint: {asynchronous: true}\n"),
    *(
        (f"rollout.{key}", "group_size: 8", f"group_size: 8\n  {key}: {value}")
        for key, value in (("tensor_parallel", 1), ("gpu_memory_utilization", 0.5), ("enforce_eager", "true"))
    ),
    ("model.lora.sync", "{path: toy}", "{path: toy, lora: {rank: 4, sync: merged}}"),
    ("tracking.sampled_groups", "", "tracking: {rollouts: none, sampled_groups: 2}\n"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "old", "new"), CASES)
def test_a_key_stated_to_no_effect_is_refused(write_recipe, key, old, new):
    with pytest.raises(UsageError) as caught:
        load_recipe(write_recipe((old, new)))
    assert f": {key}: has no effect: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_entry_of_the_table_has_a_case():
    assert {key for rule in IGNORED for key in rule.keys} == {key for key, _, _ in CASES}


def test_the_message_names_the_switch_and_the_way_out(write_recipe):
    with pytest.raises(UsageError) as caught:
        load_recipe(write_recipe(("", "tracking: {rollouts: all, sampled_groups: 2}\n")))
    assert str(caught.value) == (
        "x.yaml:15: tracking.sampled_groups: has no effect: only rollouts: sample writes a number of groups; "
        "remove it, or use rollouts: sample"
    )


def test_a_switch_may_turn_off_what_is_inherited_or_stated_before_it(write_recipe):
    write_recipe(("problems: 320", "problems: 320\n  refill: one_for_one\n  min_correct: 2"), name="base.yaml")
    off = write_recipe(text="extends: base.yaml\ndynamic_sampling: {enabled: false}\n", name="off.yaml")
    assert load_recipe(off).recipe.dynamic_sampling.min_correct == 2
    assert not load_recipe("base.yaml", ["dynamic_sampling.enabled=false"]).recipe.dynamic_sampling.enabled
    with pytest.raises(
        UsageError, match=r"^--set dynamic_sampling\.min_correct=3: dynamic_sampling\.min_correct: has no effect"
    ):
        load_recipe(off, ["dynamic_sampling.min_correct=3"])


def test_saying_that_there_is_none_is_no_contradiction(write_recipe):
    text = "prompt: {format: plain, system: null, template_arguments: {}}\n"
    load_recipe(write_recipe(("", text), ("model: {path: toy}", "model: {path: toy, revision: null}")))
