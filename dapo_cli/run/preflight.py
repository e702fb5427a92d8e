"""What is checked before step 1, when a mistake still costs seconds: the scorer, and how much there is to learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dapo_cli.algorithm.dynamic_sampling import pass_rates_in_words
from dapo_cli.dataset.prompt_template import template_text
from dapo_cli.errors import VerificationError
from dapo_cli.recipe.schema import Prompt, Recipe, Reward
from dapo_cli.reward.scoring import SCORERS, answer_example
from dapo_cli.types import Problem, RolloutGroup

# Below this share of informative groups dynamic sampling draws ten problems and more for each it keeps.
LOW_INFORMATIVE_FRACTION = 0.1
_SHOWN_EXAMPLES = 3


def check_scorer(problems: Sequence[Problem], prompt: Prompt, reward: Reward, note: Callable[[str], None]) -> None:
    """Every ground truth, in the answer format the scorer reads, must score +1 and a wrong one -1; so must the prompt's
    own few-shot answers be readable. A prompt that nowhere shows that format is noted.

    Raises:
        VerificationError: some are not; names how many and the first few.
    """
    scorer = SCORERS[reward.scorer]

    def verdict(answer: str, ground_truth: str) -> float:
        response = answer_example(reward.scorer, answer).removeprefix(reward.response_prefix)
        return scorer(reward.response_prefix + response, ground_truth).score

    unread = [
        example.answer
        for example in prompt.few_shot
        if scorer(f"{reward.response_prefix} {example.answer}", "").outcome == "no_answer"
    ]
    if unread:
        raise VerificationError(
            f"prompt.few_shot: reward.scorer {reward.scorer} finds no answer in {len(unread)} of "
            f"{len(prompt.few_shot)} examples, such as {unread[0]!r}: the model would learn a format scored as wrong",
            hint=f"end each example with {answer_example(reward.scorer, 'X')!r}, or set reward.response_prefix to how "
            "the prompt ends",
        )
    marker = answer_example(reward.scorer, "").strip()
    shown = (
        template_text(prompt.template),
        prompt.system or "",
        reward.response_prefix,
        *(e.answer for e in prompt.few_shot),
    )
    if not any(marker.lower() in text.lower() for text in shown):
        note(f"the prompt nowhere says {marker!r}, which reward.scorer {reward.scorer} looks for")

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
    fraction = sum(0 < group.num_correct < size for group in groups) / len(groups)
    accuracy = sum(group.num_correct for group in groups) / (size * len(groups))
    rates = pass_rates_in_words([group.num_correct for group in groups], size)
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
