"""Keys that another key switches off: stating both is refused, inheriting one of them is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dapo_cli.recipe.contradiction import Problem
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.origins import DEFAULT, Origin
from dapo_cli.recipe.schema import Recipe
from dapo_cli.recipe.scorers import needs_workers, scorer_names


@dataclass(frozen=True, slots=True)
class Ignored:
    """`keys` have no effect while `switch` has the value that `when` tests."""

    keys: tuple[str, ...]
    switch: str
    when: Callable[[Recipe], bool]
    because: str
    suggestion: str


def _is_not_a_hub_id(recipe: Recipe) -> bool:
    path = recipe.model.path
    return path == "toy" or path.startswith(("package:", "/", ".", "~")) or path.endswith(".gguf")


def _all_scorers(recipe: Recipe) -> list[str]:
    scorers = [recipe.reward.scorer, *(part.scorer for part in recipe.dataset.parts if part.scorer is not None)]
    return [name for scorer in scorers for name in scorer_names(scorer)]


IGNORED = (
    Ignored(
        ("model.revision",),
        "model.path",
        _is_not_a_hub_id,
        "a revision chooses among the versions of a Hub model, and model.path is none",
        "remove it",
    ),
    Ignored(
        ("prompt.system", "prompt.chat_template", "prompt.template_arguments"),
        "prompt.format",
        lambda recipe: recipe.prompt.format == "plain",
        "format: plain uses no chat template",
        "remove it, or use format: chat",
    ),
    Ignored(
        ("prompt.few_shot_separator",),
        "prompt.format",
        lambda recipe: recipe.prompt.format == "chat",
        "format: chat puts few-shot examples into turns of their own",
        "remove it, or use format: plain",
    ),
    Ignored(
        ("prompt.few_shot_separator",),
        "prompt.few_shot",
        lambda recipe: recipe.prompt.format == "plain" and not recipe.prompt.few_shot,
        "there are no few_shot examples to separate",
        "remove it, or add few_shot",
    ),
    Ignored(
        tuple(f"reward.{key}" for key in ("on_verifier_error", "workers", "time_limit_seconds", "memory_limit_bytes")),
        "reward.scorer",
        lambda recipe: not any(needs_workers(name) for name in _all_scorers(recipe)),
        "only math_verify and a scorer of your own can take long or fail",
        "remove it",
    ),
    Ignored(
        ("reward.overlong_penalty_factor",),
        "reward.overlong_buffer_length",
        lambda recipe: recipe.reward.overlong_penalty_factor > 0 and recipe.reward.overlong_buffer_length == 0,
        "overlong_buffer_length: 0 turns the punishment off",
        "set overlong_buffer_length (a fifth of max_response_tokens in the paper), or remove it",
    ),
    Ignored(
        ("reward.overlong_buffer_length",),
        "reward.overlong_penalty_factor",
        lambda recipe: recipe.reward.overlong_buffer_length > 0 and recipe.reward.overlong_penalty_factor == 0,
        "overlong_penalty_factor: 0 turns the punishment off",
        "set overlong_penalty_factor (1.0 in the public script), or use overlong_buffer_length: 0",
    ),
    Ignored(
        tuple(f"dynamic_sampling.{key}" for key in ("min_correct", "max_correct", "refill", "when_exhausted")),
        "dynamic_sampling.enabled",
        lambda recipe: not recipe.dynamic_sampling.enabled,
        "enabled: false accepts every group",
        "remove it, or use enabled: true",
    ),
    Ignored(
        ("dynamic_sampling.problems_per_batch",),
        "dynamic_sampling.refill",
        lambda recipe: recipe.dynamic_sampling.refill == "one_for_one" or not recipe.dynamic_sampling.enabled,
        "only refill: whole_batches with enabled: true draws in batches",
        "remove it, or use refill: whole_batches",
    ),
    Ignored(
        ("train.emulated_partition.ranks",),
        "train.loss_denominator",
        lambda recipe: recipe.train.loss_denominator != "microbatch",
        "only loss_denominator: microbatch depends on micro-batches",
        "remove it, or use loss_denominator: microbatch",
    ),
    Ignored(
        ("train.warmup_from_zero",),
        "train.warmup_steps",
        lambda recipe: recipe.train.warmup_from_zero and recipe.train.warmup_steps == 0,
        "warmup_steps: 0 has no warm-up",
        "remove it, or set warmup_steps",
    ),
    Ignored(
        (
            "backend.nodes",
            "backend.gpus_per_node",
            "backend.policy_ranks",
            "backend.engine_replicas",
            "backend.placement",
            "backend.ranks_per_shard_group",
            "backend.offload",
            "backend.timeout_seconds",
            "checkpoint.asynchronous",
        ),
        "backend.kind",
        lambda recipe: recipe.backend.kind == "local",
        "kind: local is one process, which writes its checkpoints at once",
        "remove it, or use backend.kind: ray",
    ),
    Ignored(
        ("rollout.tensor_parallel", "rollout.gpu_memory_utilization", "rollout.enforce_eager", "model.lora.sync"),
        "rollout.engine",
        lambda recipe: recipe.rollout.engine == "hf",
        "engine: hf samples from the policy itself",
        "remove it, or use rollout.engine: vllm",
    ),
    Ignored(
        ("checkpoint.keep_best",),
        "checkpoint.keep_last",
        lambda recipe: recipe.checkpoint.keep_last == "all" and recipe.checkpoint.keep_best > 0,
        "keep_last: all keeps every checkpoint",
        "remove it, or give keep_last a number",
    ),
    Ignored(
        ("checkpoint.best_metric",),
        "checkpoint.keep_best",
        lambda recipe: recipe.checkpoint.keep_best == 0,
        "keep_best: 0 keeps no checkpoint for its metric",
        "remove it, or give keep_best a number",
    ),
    Ignored(
        ("tracking.sampled_groups",),
        "tracking.rollouts",
        lambda recipe: recipe.tracking.rollouts != "sample",
        "only rollouts: sample writes a number of groups",
        "remove it, or use rollouts: sample",
    ),
)


def ignored_problems(recipe: Recipe, origins: Mapping[str, Origin]) -> list[Problem]:
    """Keys stated to no effect.

    A key counts as stated to no effect only if it comes in the same place as, or a later one than, the switch: a
    recipe that extends another, or an override, may switch off what it inherits. `origins` are by dotted key.
    """
    values = leaf_values(recipe)
    problems = []
    for rule in IGNORED:
        if not rule.when(recipe):
            continue
        switch = origins.get(rule.switch, DEFAULT).layer
        for key in rule.keys:
            says_nothing = values.get(key) in (None, (), {})
            if not says_nothing and origins.get(key, DEFAULT).layer >= max(switch, 1):
                problems.append(Problem((key,), f"has no effect: {rule.because}", rule.suggestion))
    return problems
