"""Settings that are fine alone and impossible together. One function per rule, so that a rule is read on its own."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from dapo_cli.recipe.cluster_rules import CLUSTER_RULES, idle_parts
from dapo_cli.recipe.contradiction import Problem, Rule
from dapo_cli.recipe.dataset_rules import DATASET_RULES
from dapo_cli.recipe.schema import Recipe

_LARGEST_LISTED = 4096
NAMED_TEMPLATES = ("dapo", "boxed", "problem")


def combination_problems(recipe: Recipe) -> list[Problem]:
    """Every rule that `recipe` breaks, in the order of the sections."""
    return [problem for rule in RULES for problem in rule(recipe)]


def _stop_token_ids(recipe: Recipe) -> Iterator[Problem]:
    if recipe.rollout.stop_token_ids == () and not recipe.rollout.stop_strings:
        yield Problem(
            ("rollout.stop_token_ids", "rollout.stop_strings"),
            "nothing would end a response but its limit",
            "name a token id or a stop string, or use generation_config",
        )


def _template_arguments(recipe: Recipe) -> Iterator[Problem]:
    taken = sorted(
        {"messages", "conversation", "tokenize", "add_generation_prompt", "chat_template", "tools"}
        & set(recipe.prompt.template_arguments)
    )
    if taken:
        yield Problem(
            ("prompt.template_arguments",), f"{', '.join(taken)} cannot be set here: rendering sets them", "remove them"
        )


def _template(recipe: Recipe) -> Iterator[Problem]:
    template = recipe.prompt.template
    if template not in NAMED_TEMPLATES and "{problem}" not in template:
        yield Problem(
            ("prompt.template",),
            f"{template!r} is none of {', '.join(NAMED_TEMPLATES)} and no text that contains {{problem}}",
            "put {problem} where the problem goes",
        )


def _group_size(recipe: Recipe) -> Iterator[Problem]:
    if recipe.rollout.group_size == 1:
        yield Problem(
            ("rollout.group_size", "advantage.normalize", "dynamic_sampling.enabled"),
            "a group of 1 has no advantage: its reward minus the group's mean is always 0",
            "use at least 2, 16 in the paper",
        )


def _top_p(recipe: Recipe) -> Iterator[Problem]:
    if recipe.rollout.top_p != 1:
        yield Problem(
            ("rollout.top_p",),
            f"{recipe.rollout.top_p:g} samples from another distribution than the one that is trained",
            "use 1.0 here; evaluation has its own top_p",
        )


def _stop_strings(recipe: Recipe) -> Iterator[Problem]:
    if "" in recipe.rollout.stop_strings:
        yield Problem(("rollout.stop_strings",), "an empty text would end every response at once", "remove it")


def _overlong_buffer(recipe: Recipe) -> Iterator[Problem]:
    buffer, limit = recipe.reward.overlong_buffer_length, recipe.rollout.max_response_tokens
    if buffer > limit:
        yield Problem(
            ("reward.overlong_buffer_length", "rollout.max_response_tokens"),
            f"a buffer of {buffer} tokens is longer than the longest response ({limit} tokens): all would be punished",
            f"use at most {limit}; the paper's is a fifth of the limit",
        )


def _accepted_band(recipe: Recipe) -> Iterator[Problem]:
    sampling, group_size = recipe.dynamic_sampling, recipe.rollout.group_size
    if not sampling.enabled or group_size == 1:
        return
    keys = ("dynamic_sampling.max_correct", "dynamic_sampling.min_correct", "rollout.group_size")
    highest = group_size - 1 if sampling.max_correct == -1 else sampling.max_correct
    if not 1 <= highest < group_size:
        yield Problem(
            (keys[0], keys[2]),
            f"{highest} right answers of {group_size}: such a group is all right or all wrong and teaches nothing",
            f"use 1 to {group_size - 1}, or -1 for {group_size - 1}",
        )
    elif sampling.min_correct > highest:
        yield Problem(
            (keys[1], *keys[::2]),
            f"no group has at least {sampling.min_correct} and at most {highest} right answers of {group_size}",
            f"use 1 to {highest} for min_correct",
        )


def _drawn_problems(recipe: Recipe) -> Iterator[Problem]:
    sampling, needed = recipe.dynamic_sampling, recipe.train.prompts_per_step
    if sampling.enabled and sampling.max_drawn_problems < needed:
        yield Problem(
            ("dynamic_sampling.max_drawn_problems", "train.prompts_per_step"),
            f"{sampling.max_drawn_problems} problems can never fill a step of {needed} groups",
            f"use at least {needed}; 10 times as many ({10 * needed}) is usual",
        )


def _whole_batches(recipe: Recipe) -> Iterator[Problem]:
    sampling = recipe.dynamic_sampling
    if not sampling.enabled or sampling.refill != "whole_batches":
        return
    size = sampling.problems_per_batch
    if size is None:
        yield Problem(
            ("dynamic_sampling.problems_per_batch", "dynamic_sampling.refill"),
            "refill: whole_batches needs the number of problems of a batch",
            f"the public script used 3 times prompts_per_step, here {3 * recipe.train.prompts_per_step}",
        )
    elif sampling.max_drawn_problems % size:
        yield Problem(
            ("dynamic_sampling.max_drawn_problems", "dynamic_sampling.problems_per_batch"),
            f"{sampling.max_drawn_problems} is not a whole number of batches of {size} problems",
            f"use a multiple of {size}",
        )


def _minibatches(recipe: Recipe) -> Iterator[Problem]:
    step, minibatch = recipe.train.prompts_per_step, recipe.train.prompts_per_minibatch
    if step % minibatch:
        # Whatever number was typed must not keep the check busy: larger divisors than these are not of use.
        small = [number for number in range(1, min(step, _LARGEST_LISTED + 1)) if step % number == 0]
        divisors = ", ".join(map(str, [*small, step]))
        yield Problem(
            ("train.prompts_per_minibatch", "train.prompts_per_step"),
            f"minibatches of {minibatch} prompts do not divide a step of {step} prompts",
            f"use one of {divisors}",
        )


def _longest_sequence(recipe: Recipe) -> Iterator[Problem]:
    longest = recipe.prompt.max_prompt_tokens + recipe.rollout.max_response_tokens
    lengths = ("prompt.max_prompt_tokens", "rollout.max_response_tokens")
    budgets = {"train.tokens_per_microbatch": recipe.train.tokens_per_microbatch}
    if recipe.train.loss_denominator == "microbatch" and recipe.train.emulated_partition is not None:
        budgets["train.emulated_partition.tokens_per_microbatch"] = (
            recipe.train.emulated_partition.tokens_per_microbatch
        )
    for key, budget in budgets.items():
        if budget < longest:
            yield Problem(
                (key, *lengths),
                f"a micro-batch of {budget} tokens cannot hold the longest prompt and response, {longest} tokens",
                f"use at least {longest}, or lower max_prompt_tokens or max_response_tokens",
            )


def _emulated_partition(recipe: Recipe) -> Iterator[Problem]:
    train, group_size = recipe.train, recipe.rollout.group_size
    if train.loss_denominator != "microbatch":
        return
    keys = ("train.emulated_partition", "train.loss_denominator")
    if train.emulated_partition is None:
        yield Problem(
            keys,
            "loss_denominator: microbatch depends on the machine whose micro-batches are emulated",
            "add emulated_partition: {ranks: ..., tokens_per_microbatch: ...}, or use minibatch",
        )
        return
    rollouts, ranks = train.prompts_per_minibatch * group_size, train.emulated_partition.ranks
    if rollouts % ranks:
        yield Problem(
            ("train.emulated_partition.ranks", "train.prompts_per_minibatch", "rollout.group_size"),
            f"{rollouts} rollouts per update (prompts_per_minibatch x group_size) do not divide among {ranks} ranks",
            f"use a divisor of {rollouts}",
        )


def _best_checkpoints(recipe: Recipe) -> Iterator[Problem]:
    """Whether a checkpoint before the last has the metric by which the best are kept."""
    checkpoint, every = recipe.checkpoint, recipe.eval.every
    by_evaluation = checkpoint.best_metric is None or checkpoint.best_metric.startswith("eval/")
    if checkpoint.keep_best == 0 or not by_evaluation:
        return
    if every is None or lcm(every, checkpoint.every) >= recipe.train.steps:
        yield Problem(
            ("checkpoint.keep_best", "eval.every", "checkpoint.every", "train.steps"),
            "no checkpoint before the last is of a step with an evaluation, so none can be called the best",
            f"use a multiple of {checkpoint.every} for eval.every, below {recipe.train.steps}, or the reverse",
        )


RULES: tuple[Rule, ...] = (
    *CLUSTER_RULES,
    *DATASET_RULES,
    _template_arguments,
    _stop_token_ids,
    _template,
    _group_size,
    _top_p,
    _stop_strings,
    _overlong_buffer,
    _accepted_band,
    _drawn_problems,
    _whole_batches,
    _minibatches,
    _longest_sequence,
    _emulated_partition,
    _best_checkpoints,
)


def schedule_notes(recipe: Recipe) -> list[str]:
    """What is allowed and probably not meant, one sentence each."""
    train = recipe.train
    notes = idle_parts(recipe)
    if train.warmup_steps + train.warmup_from_zero > train.steps:
        reached = max(train.steps - train.warmup_from_zero, 0) / train.warmup_steps
        notes.append(
            f"train.warmup_steps: {train.warmup_steps} of {train.steps} steps, so that the learning rate "
            f"only reaches {reached:.0%} of train.learning_rate"
        )
    return notes
