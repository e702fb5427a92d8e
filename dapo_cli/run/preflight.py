"""What is checked before step 1, when a mistake still costs seconds: the scorer, and how much there is to learn."""

from __future__ import annotations

from collections.abc import Sequence

from dapo_cli.algorithm.dynamic_sampling import accepted, pass_rate_histogram
from dapo_cli.errors import VerificationError
from dapo_cli.recipe.schema import Recipe, Reward
from dapo_cli.reward.scoring import SCORERS, answer_example
from dapo_cli.types import Problem, RolloutGroup

# Below this share of informative groups dynamic sampling draws ten problems and more for each it keeps.
LOW_INFORMATIVE_FRACTION = 0.1
_SHOWN_EXAMPLES = 3


def check_scorer(problems: Sequence[Problem], reward: Reward) -> None:
    """Every ground truth, written in the prompt's own answer format, must score +1, and a wrong one -1.

    Raises:
        VerificationError: some do not; names how many and the first few.
    """
    scorer = SCORERS[reward.scorer]

    def verdict(answer: str, ground_truth: str) -> float:
        response = answer_example(reward.scorer, answer).removeprefix(reward.response_prefix)
        return scorer(reward.response_prefix + response, ground_truth).score

    bad = [
        problem
        for problem in problems
        if verdict(problem.ground_truth, problem.ground_truth) != 1.0
        or verdict(f"{problem.ground_truth}1", problem.ground_truth) != -1.0
    ]
    if bad:
        examples = ", ".join(repr(problem.ground_truth) for problem in bad[:_SHOWN_EXAMPLES])
        raise VerificationError(
            f"reward.scorer: {reward.scorer}: {len(bad)} of {len(problems)} ground truths cannot be told right from "
            f"wrong in the prompt's own answer format: {examples}",
            hint="remove these problems, or rewrite their answers as the scorer reads them",
        )


def describe_pass_rates(groups: Sequence[RolloutGroup], recipe: Recipe) -> tuple[dict[str, float], str]:
    """The metrics `preflight/*` and a text for the user, with the remedies when little can be learned."""
    size = recipe.rollout.group_size
    band = recipe.dynamic_sampling
    counts = pass_rate_histogram([group.num_correct for group in groups], size).tolist()
    informative = sum(accepted(group.num_correct, size, band.min_correct, band.max_correct) for group in groups)
    fraction = informative / len(groups)
    accuracy = sum(group.num_correct for group in groups) / (size * len(groups))
    rates = ", ".join(f"{right}/{size}: {count}" for right, count in enumerate(counts) if count)
    text = f"pre-flight: {len(groups)} problems, accuracy {accuracy:.1%}, {fraction:.0%} informative ({rates})"
    if fraction < LOW_INFORMATIVE_FRACTION:
        text += f"\n{_remedies(groups, accuracy)}"
    return {"preflight/accuracy": accuracy, "preflight/informative_fraction": fraction}, text


def _remedies(groups: Sequence[RolloutGroup], accuracy: float) -> str:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    unread = sum(rollout.scored.outcome == "no_answer" for rollout in rollouts) / len(rollouts)
    truncated = sum(rollout.finish_reason == "length" for rollout in rollouts) / len(rollouts)
    if accuracy > 0.5:
        advice = "the problems are too easy: harder problems"
    else:
        advice = "the problems are too hard: easier problems, few-shot examples, a stronger or warmed-up model"
    lines = [
        f"fewer than {LOW_INFORMATIVE_FRACTION:.0%} of groups are informative, so most of the sampling is thrown away: "
        f"{advice}, or a larger rollout.group_size"
    ]
    if unread > 0.5:
        lines.append(
            f"{unread:.0%} of responses hold no answer the scorer can read: look at prompt.template, "
            "reward.response_prefix and rollout.stop_strings"
        )
    if truncated > 0.5:
        lines.append(f"{truncated:.0%} of responses are cut at rollout.max_response_tokens: raise it")
    return "\n".join(lines)
