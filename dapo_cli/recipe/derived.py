"""Numbers that follow from a recipe: what it amounts to in rollouts, updates and tokens, and its learning rate."""

from __future__ import annotations

from typing import NamedTuple

from dapo_cli.recipe.cluster import cluster_shape
from dapo_cli.recipe.schema import Recipe, Train


class Derived(NamedTuple):
    """A number that is not in the recipe and follows from it."""

    name: str
    value: int | float
    explanation: str


def learning_rate(train: Train, step: int) -> float:
    """The learning rate of every update of rollout step `step`, counted from 1.

    Linear warm-up over `warmup_steps` rollout steps, then constant (paper, section 4.1): step k uses
    lr * min(1, k / warmup_steps). With `warmup_from_zero` it uses lr * min(1, (k - 1) / warmup_steps), as the public
    run did: its scheduler moved after the updates, so that its first step left the weights as they were.

    Raises:
        ValueError: `step` is not positive.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, got {step}")
    if train.warmup_steps == 0:
        return train.learning_rate
    done = step - 1 if train.warmup_from_zero else step
    return train.learning_rate * min(1.0, done / train.warmup_steps)


def derived_numbers(recipe: Recipe) -> list[Derived]:
    """What `dapo check` prints below the settings."""
    return [*_per_step(recipe), *_sampling(recipe), *_schedule(recipe.train), *_cluster(recipe)]


def _per_step(recipe: Recipe) -> list[Derived]:
    train, group_size = recipe.train, recipe.rollout.group_size
    rollouts = train.prompts_per_step * group_size
    updates = train.prompts_per_step // train.prompts_per_minibatch
    longest = recipe.prompt.max_prompt_tokens + recipe.rollout.max_response_tokens
    return [
        Derived("rollouts per step", rollouts, "prompts_per_step x group_size"),
        Derived("rollouts per update", train.prompts_per_minibatch * group_size, "prompts_per_minibatch x group_size"),
        Derived("updates per step", updates, "prompts_per_step / prompts_per_minibatch"),
        Derived("updates in all", updates * train.steps, "updates per step x steps"),
        Derived("rollouts trained on in all", rollouts * train.steps, "rollouts per step x steps"),
        Derived("longest sequence, tokens", longest, "max_prompt_tokens + max_response_tokens"),
        Derived("most tokens per step", rollouts * longest, "rollouts per step x longest sequence"),
        Derived("most response tokens per step", rollouts * recipe.rollout.max_response_tokens, "of those, sampled"),
        Derived(
            "longest sequences per micro-batch",
            train.tokens_per_microbatch // longest,
            "tokens_per_microbatch / longest sequence",
        ),
    ]


def _sampling(recipe: Recipe) -> list[Derived]:
    sampling, group_size = recipe.dynamic_sampling, recipe.rollout.group_size
    drawn = sampling.max_drawn_problems if sampling.enabled else recipe.train.prompts_per_step
    numbers = [
        Derived("most problems drawn per step", drawn, "max_drawn_problems; prompts_per_step without dynamic sampling"),
        Derived("most rollouts sampled per step", drawn * group_size, "most problems drawn x group_size"),
    ]
    if sampling.enabled:
        highest = group_size - 1 if sampling.max_correct == -1 else sampling.max_correct
        numbers += [
            Derived("fewest right answers of an accepted group", sampling.min_correct, "min_correct"),
            Derived("most right answers of an accepted group", highest, "max_correct; -1 is group_size - 1"),
            Derived(
                "share of informative groups that fills a step",
                recipe.train.prompts_per_step / drawn,
                "prompts_per_step / max_drawn_problems; with fewer, when_exhausted decides",
            ),
        ]
    if recipe.reward.overlong_buffer_length and recipe.reward.overlong_penalty_factor:
        unpunished = recipe.rollout.max_response_tokens - recipe.reward.overlong_buffer_length
        numbers.append(
            Derived("longest unpunished response, tokens", unpunished, "max_response_tokens - overlong_buffer_length")
        )
    return numbers


def _schedule(train: Train) -> list[Derived]:
    updates = train.prompts_per_step // train.prompts_per_minibatch
    numbers = [Derived("learning rate of step 1", learning_rate(train, 1), "of every update of that step")]
    if train.warmup_steps:
        full = train.warmup_steps + train.warmup_from_zero
        numbers += [
            Derived("warm-up, steps", train.warmup_steps, "warmup_steps"),
            Derived("warm-up, updates", train.warmup_steps * updates, "warm-up steps x updates per step"),
            Derived("first step at the full learning rate", full, "one later with warmup_from_zero"),
        ]
    return [*numbers, Derived("learning rate of the last step", learning_rate(train, train.steps), "of step steps")]


def _cluster(recipe: Recipe) -> list[Derived]:
    if recipe.backend.kind == "local":
        return []
    shape = cluster_shape(recipe)
    rollouts = recipe.train.prompts_per_minibatch * recipe.rollout.group_size
    return [
        Derived("GPUs in all", shape.total_gpus, "nodes x gpus_per_node; 0: CPUs"),
        Derived("policy ranks", shape.policy_ranks, "policy_ranks, or what placement leaves for them"),
        Derived("vLLM replicas", shape.engine_replicas, "engine_replicas, or what placement leaves for them"),
        Derived("GPUs per replica", shape.gpus_per_replica, "tensor_parallel; 0 on CPUs"),
        Derived("rollouts per update and rank", rollouts / shape.policy_ranks, "on average: they are dealt by tokens"),
    ]
