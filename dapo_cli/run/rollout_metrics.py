"""What a step's rollouts say about the policy: keys `rollout/` and `reward/` of the metrics.

Without an ending they are over every group that was drawn, which is what the policy does; with `_kept` over the groups
that were trained on, which is what verl logs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dapo_cli.types import Rollout, RolloutGroup


def rollout_metrics(drawn: Sequence[RolloutGroup], kept: Sequence[RolloutGroup]) -> dict[str, float]:
    """Counts of groups, and the means of `describe_rollouts` over drawn and kept groups.

    Means over no rollout are left out. Rollouts must be scored.
    """
    sizes = [(group.num_correct, group.num_judged) for group in drawn]
    kept_indices = {group.index for group in kept}
    informative = [group for group, (right, size) in zip(drawn, sizes, strict=True) if 0 < right < size]
    drawn_rollouts = [rollout for group in drawn for rollout in group.rollouts]
    kept_rollouts = [rollout for group in kept for rollout in group.rollouts]
    metrics: dict[str, float] = {
        "rollout/drawn_problems": len(drawn),
        "rollout/kept_groups": len(kept),
        "rollout/all_right_groups": sum(0 < right == size for right, size in sizes),
        "rollout/all_wrong_groups": sum(right == 0 < size for right, size in sizes),
        "rollout/unused_informative_groups": sum(group.index not in kept_indices for group in informative),
        **pass_rate_histogram(sizes),
    }
    if drawn:
        metrics["rollout/informative_fraction"] = len(informative) / len(drawn)
        prompt_lengths = [len(group.prompt_ids) for group in drawn]
        metrics["rollout/prompt_length_mean"] = float(np.mean(prompt_lengths))
        metrics["rollout/prompt_length_max"] = max(prompt_lengths)
        metrics |= diversity(drawn)
    if kept:
        tokens = sum(len(rollout.response_ids) for rollout in drawn_rollouts)
        metrics["rollout/tokens_per_kept_group"] = tokens / len(kept)
    metrics |= describe_rollouts(drawn_rollouts)
    metrics |= {f"{key}_kept": value for key, value in describe_rollouts(kept_rollouts).items()}
    return metrics | metrics_by_dataset(drawn, kept)


def pass_rate_histogram(sizes: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Groups by the share of right answers among those with a verdict, `sizes` being (right, judged) of each.

    >>> {key.rpartition("/")[2]: n for key, n in pass_rate_histogram([(0, 4), (1, 4), (3, 4), (4, 4)]).items()}
    {'0': 1, '1-25': 1, '26-50': 0, '51-75': 1, '76-99': 0, '100': 1}
    """
    counts = dict.fromkeys(("0", "1-25", "26-50", "51-75", "76-99", "100"), 0)
    names = list(counts)
    for right, judged in sizes:
        if judged:
            quarter = -(-4 * right // judged)
            counts["100" if right == judged else names[quarter]] += 1
    return {f"rollout/groups_by_pass_rate/{name}": count for name, count in counts.items()}


def diversity(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Mean numbers per group of different extracted answers and of different responses that are right."""
    answers = [
        len({r.scored.prediction for r in group.rollouts if r.scored.prediction is not None}) for group in groups
    ]
    right = [len({r.response for r in group.rollouts if r.correct}) for group in groups]
    return {
        "rollout/distinct_answers_mean": float(np.mean(answers)),
        "rollout/distinct_right_responses_mean": float(np.mean(right)),
    }


def version_lag(kept: Sequence[RolloutGroup], trained_version: int) -> dict[str, float]:
    """How many weight versions the rollouts that are trained on lie behind the weights that are trained."""
    lags = [trained_version - rollout.policy_version for group in kept for rollout in group.rollouts]
    if not lags:
        return {}
    return {"rollout/version_lag_mean": float(np.mean(lags)), "rollout/version_lag_max": max(lags)}


def metrics_by_dataset(drawn: Sequence[RolloutGroup], kept: Sequence[RolloutGroup]) -> dict[str, float]:
    """What each dataset contributes, keys `dataset/<name>/...`; empty where all problems are of one dataset."""
    names = sorted({group.problem.dataset for group in drawn})
    if len(names) < 2:
        return {}
    metrics: dict[str, float] = {}
    for name in names:
        own = [group for group in drawn if group.problem.dataset == name]
        rollouts = [rollout for group in own for rollout in group.rollouts]
        described = describe_rollouts(rollouts)
        values = {
            "drawn_problems": len(own),
            "kept_groups": sum(group.problem.dataset == name for group in kept),
            "accuracy": described["rollout/accuracy"],
            "no_answer_fraction": described["rollout/no_answer_fraction"],
            "verifier_error_fraction": described["rollout/verifier_error_fraction"],
            "truncated_fraction": described["rollout/truncated_fraction"],
            "response_length_mean": described["rollout/response_length_mean"],
        }
        metrics |= {f"dataset/{name}/{key}": value for key, value in values.items()}
    return metrics


def describe_rollouts(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Accuracy, lengths in tokens, endings, probability and rewards of scored rollouts; empty for none.

    `rollout/probability_mean` is the mean over tokens of the probability they were sampled with (paper, figure 7d).
    """
    if not rollouts:
        return {}
    lengths = np.array([len(rollout.response_ids) for rollout in rollouts])
    penalties = np.array([rollout.overlong_penalty for rollout in rollouts])
    outcomes = [rollout.scored.outcome for rollout in rollouts]
    metrics = {
        "rollout/accuracy": outcomes.count("right") / len(rollouts),
        "rollout/no_answer_fraction": outcomes.count("no_answer") / len(rollouts),
        "rollout/verifier_error_fraction": sum(r.scored.failed for r in rollouts) / len(rollouts),
        "reward/verifier_errors": sum(r.scored.failed for r in rollouts),
        "rollout/truncated_fraction": sum(r.finish_reason == "length" for r in rollouts) / len(rollouts),
        "rollout/response_length_mean": float(lengths.mean()),
        "rollout/response_length_min": int(lengths.min()),
        "rollout/response_length_max": int(lengths.max()),
        "rollout/response_tokens": int(lengths.sum()),
        "reward/overlong_penalty_mean": float(penalties.mean()),
        "reward/overlong_penalized_fraction": float((penalties < 0).mean()),
    }
    for outcome in ("right", "wrong"):
        own = lengths[[each == outcome for each in outcomes]]
        if len(own):
            metrics[f"rollout/{outcome}_response_length_mean"] = float(own.mean())
    # A rollout without a verdict has no reward.
    if judged := [rollout for rollout in rollouts if rollout.judged]:
        rewards = np.array([rollout.reward for rollout in judged])
        metrics["reward/mean"] = float(rewards.mean())
        metrics["reward/min"] = float(rewards.min())
        metrics["reward/max"] = float(rewards.max())
        metrics["reward/score_mean"] = float(np.mean([rollout.scored.score for rollout in judged]))
    if lengths.sum():
        probabilities = sum(float(np.exp(r.rollout_logprobs, dtype=np.float64).sum()) for r in rollouts)
        metrics["rollout/probability_mean"] = probabilities / int(lengths.sum())
    return metrics
