"""What is checked before step 1, when a mistake still costs seconds: the scorer, and how much there is to learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dapo_cli.algorithm.dynamic_sampling import pass_rates_in_words
from dapo_cli.dataset.prompt_template import template_text
from dapo_cli.errors import VerificationError
from dapo_cli.recipe.schema import Prompt, Recipe, Reward
from dapo_cli.recipe.scorers import forms_read, scorer_names
from dapo_cli.reward.scoring import answer_example, judge_all
from dapo_cli.types import Problem, RolloutGroup

# Below this share of informative groups dynamic sampling draws ten problems and more for each it keeps.
LOW_INFORMATIVE_FRACTION = 0.1
_SHOWN_EXAMPLES = 3


def check_scorers(problems: Sequence[Problem], prompt: Prompt, reward: Reward, note: Callable[[str], None]) -> None:
    """`check_scorer` for every scorer, with the problems that it judges.

    Raises:
        VerificationError: see `check_scorer`.
        UsageError: see `check_scorer`.
    """
    judged: dict[tuple[str, ...] | None, dict[int, Problem]] = {}
    for problem in problems:
        judged.setdefault(problem.scorer, {})[id(problem)] = problem
    for scorer, own in judged.items():
        its = reward if scorer is None else reward.model_copy(update={"scorer": scorer})
        check_scorer(list(own.values()), prompt, its, note)


def check_scorer(problems: Sequence[Problem], prompt: Prompt, reward: Reward, note: Callable[[str], None]) -> None:
    """Every ground truth, in the answer format the scorer reads, must score +1 and a wrong one -1; so must the prompt's
    own few-shot answers be readable. A prompt that nowhere shows that format is noted.

    A scorer of the user's own has a format of its own: it is called once, to see that it gives a verdict.

    Raises:
        VerificationError: some are not; names how many and the first few.
        UsageError: a scorer cannot be loaded.
    """
    name = " then ".join(scorer_names(reward.scorer))
    _check_few_shot(problems, prompt, reward, name)
    forms = forms_read(reward.scorer)
    if forms is None:
        (verdict,) = judge_all([(problems[0].ground_truth, problems[0])], reward)
        if verdict.error is not None:
            raise VerificationError(f"reward.scorer: {name} gives no verdict on a first response: {verdict.error}")
        return
    shown = (
        template_text(prompt.template),
        prompt.system or "",
        reward.response_prefix,
        *(e.answer for e in prompt.few_shot),
    )
    if not any(form.lower() in text.lower() for form in forms for text in shown):
        note(f"the prompt nowhere says {' or '.join(map(repr, forms))}, which reward.scorer {name} looks for")
    _check_ground_truths(problems, reward, name)


def _check_few_shot(problems: Sequence[Problem], prompt: Prompt, reward: Reward, name: str) -> None:
    texts = [f"{reward.response_prefix} {example.answer}" for example in prompt.few_shot]
    verdicts = judge_all([(text, problems[0]) for text in texts], reward)
    outcomes = zip(prompt.few_shot, verdicts, strict=True)
    unread = [example.answer for example, verdict in outcomes if verdict.outcome == "no_answer"]
    if unread:
        example = answer_example(reward.scorer, "X")
        advice = f"end each example with {example!r}" if example else "write them as the scorer reads them"
        raise VerificationError(
            f"prompt.few_shot: reward.scorer {name} finds no answer in {len(unread)} of {len(prompt.few_shot)} "
            f"examples, such as {unread[0]!r}: the model would learn a format scored as wrong",
            hint=f"{advice}, or set reward.response_prefix to how the prompt ends",
        )


def _check_ground_truths(problems: Sequence[Problem], reward: Reward, name: str) -> None:
    def responses(answers: Sequence[str]) -> list[tuple[str, Problem]]:
        examples = [answer_example(reward.scorer, answer) or "" for answer in answers]
        prefixed = [f"{reward.response_prefix}{text.removeprefix(reward.response_prefix)}" for text in examples]
        return list(zip(prefixed, problems, strict=True))

    right = judge_all(responses([problem.ground_truth for problem in problems]), reward)
    wrong = judge_all(responses([_another_answer(problem.ground_truth, reward) for problem in problems]), reward)
    verdicts = zip(problems, right, wrong, strict=True)
    bad = [problem for problem, one, other in verdicts if (one.score, other.score) != (1.0, -1.0)]
    if bad:
        examples = ", ".join(repr(problem.ground_truth) for problem in bad[:_SHOWN_EXAMPLES])
        raise VerificationError(
            f"reward.scorer: {name}: {len(bad)} of {len(problems)} ground truths cannot be told right from "
            f"wrong in the prompt's own answer format: {examples}",
            hint="remove these problems, or rewrite their answers as the scorer reads them",
        )


def _another_answer(ground_truth: str, reward: Reward) -> str:
    """A wrong answer. Where answers are compared as mathematics, a digit after a formula may be a factor of 1."""
    is_integer = ground_truth.lstrip("-").isdigit()
    return f"{ground_truth}1" if is_integer or "math_verify" not in scorer_names(reward.scorer) else f"{ground_truth}+1"


def describe_pass_rates(groups: Sequence[RolloutGroup], recipe: Recipe) -> tuple[dict[str, float], str]:
    """The metrics `preflight/*` and a text for the user, with the remedies when little can be learned.

    Raises:
        VerificationError: the scorer gave a verdict on no response at all.
    """
    failed = [rollout.scored.error for group in groups for rollout in group.rollouts if rollout.scored.failed]
    if len(failed) == sum(len(group.rollouts) for group in groups):
        raise VerificationError(
            f"reward.scorer: no verdict on any of the {len(failed)} responses of the pre-flight; the first: "
            f"{failed[0]}",
            hint="dapo reward explain RESPONSE --gold ANSWER --scorer NAME shows what it does with one",
        )
    size = recipe.rollout.group_size
    fraction = sum(0 < group.num_correct < group.num_judged for group in groups) / len(groups)
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
    failed = [rollout.scored.error for rollout in rollouts if rollout.scored.failed]
    if len(failed) > len(rollouts) / 10:
        lines.append(f"{len(failed) / len(rollouts):.0%} of responses got no verdict, such as: {failed[0]}")
    if unread > 0.5:
        lines.append(
            f"{unread:.0%} of responses hold no answer the scorer can read: look at prompt.template, "
            "reward.response_prefix and rollout.stop_strings"
        )
    if truncated > 0.5:
        lines.append(f"{truncated:.0%} of responses are cut at rollout.max_response_tokens: raise it")
    return "\n".join(lines)
