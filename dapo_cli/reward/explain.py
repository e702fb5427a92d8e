"""Why a response got its verdict: what was extracted, from where, how it was normalised and what was compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dapo_cli.recipe.schema import Reward
from dapo_cli.recipe.scorers import scorer_names
from dapo_cli.reward import boxed, dapo_rule, dapo_rule_2026, integer, symbolic
from dapo_cli.reward.final_answer import ANSWER_CHARACTERS, FinalAnswer, final_answer, last_box
from dapo_cli.reward.scoring import PendingVerdict, worker_pool
from dapo_cli.types import Problem, Verdict

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

Step = tuple[str, str]
"""What was done, and the text after it."""

_CONTEXT_CHARACTERS = 60
_SHOWN_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Explanation:
    """One scorer's verdict on one response, and how it came about."""

    scorer: str
    response: str
    looked_for: str
    """What the scorer reads, in words."""
    place: tuple[int, int] | None
    """Where in the response the answer stands: first character and the one after the last."""
    answer_steps: tuple[Step, ...]
    ground_truth_steps: tuple[Step, ...]
    compared: str
    verdict: Verdict


def explain(response: str, ground_truth: str, reward: Reward) -> list[Explanation]:
    """One explanation per scorer that was asked, in order; the last one decides.

    Raises:
        UsageError: a scorer cannot be loaded.
    """
    explanations: list[Explanation] = []
    for name in scorer_names(reward.scorer):
        explanations.append(_EXPLAINED.get(name, _explain_own)(name, response, ground_truth, reward))
        if explanations[-1].verdict.outcome in ("right", "wrong"):
            break
    return explanations


def _verdict(name: str, response: str, ground_truth: str, reward: Reward) -> Verdict:
    problem = Problem("explained", "", (), ground_truth, "explained")
    return PendingVerdict(response, problem, reward.model_copy(update={"scorer": name})).result()


def _explain_dapo(name: str, response: str, ground_truth: str, reward: Reward) -> Explanation:
    start = max(0, len(response) - dapo_rule.SCORED_CHARACTERS)
    answer = dapo_rule.extract(response)
    place = None if answer is None else (response.rindex(answer), response.rindex(answer) + len(answer))
    looked_for = f"the rest of the line after the last Answer: in characters {start} to {len(response)}"
    if name == "dapo_2026_08":
        looked_for += f", else the last \\boxed{{}} of the last {dapo_rule_2026.BOX_CHARACTERS} characters"
        unread = answer is None or dapo_rule.normalise(answer) == dapo_rule_2026.NO_ANSWER
        box = dapo_rule_2026.box_in_the_end(response) if unread else None
        if box is not None:
            answer, place = box[0], (box[1], box[1] + len(box[0]))
    return Explanation(
        name,
        response,
        looked_for,
        place,
        () if answer is None else tuple(dapo_rule.normalisation_steps(answer)),
        tuple(dapo_rule.normalisation_steps(ground_truth)),
        "the two texts are compared character by character",
        _verdict(name, response, ground_truth, reward),
    )


def _explain_boxed(name: str, response: str, ground_truth: str, reward: Reward) -> Explanation:
    box = last_box(response, max(0, len(response) - ANSWER_CHARACTERS))
    gold_box = last_box(ground_truth)
    return Explanation(
        name,
        response,
        f"the last box, which must be closed, in the last {ANSWER_CHARACTERS} characters",
        None if box is None else (box.start, box.end),
        () if box is None else _boxed_steps(box.text),
        _boxed_steps(ground_truth if gold_box is None else gold_box.text),
        "the two texts are compared character by character",
        _verdict(name, response, ground_truth, reward),
    )


def _boxed_steps(text: str) -> tuple[Step, ...]:
    plain = boxed.as_plain_fractions(text)
    first = [("dfrac and tfrac as frac", plain)] if plain != text else []
    return (("as it stands", text), *first, *dapo_rule.normalisation_steps(plain)[1:])


_FINAL = f"the box or answer line that starts last, in the last {ANSWER_CHARACTERS} characters"


def _explain_integer(name: str, response: str, ground_truth: str, reward: Reward) -> Explanation:
    answer, gold_box = final_answer(response), last_box(ground_truth)
    return Explanation(
        name,
        response,
        _FINAL,
        _place(answer),
        () if answer is None else _integer_steps(answer.text),
        _integer_steps(ground_truth if gold_box is None else gold_box.text),
        "the two integers are compared",
        _verdict(name, response, ground_truth, reward),
    )


def _integer_steps(text: str) -> tuple[Step, ...]:
    steps = [("as it stands", text)]
    for words, step in integer.STEPS:
        text = step(text)
        steps.append((words, text))
    return (*_changes(steps), ("read as an integer", integer.read_integer(text) or "(none)"))


def _explain_math_verify(name: str, response: str, ground_truth: str, reward: Reward) -> Explanation:
    answer = final_answer(response)
    if symbolic.fast_verdict(response, ground_truth) is not None:
        compared = "both are plain integers and are compared without the library"
        readings = ("(not needed)", "(not needed)")
    else:
        compared = "the library math-verify compares the two as mathematics, ground truth first"
        texts = (symbolic.answer_text(response), symbolic.marked(ground_truth))
        pool = worker_pool(name, reward)
        replies = [pool.submit({"describe": text}) for text in texts]
        answers = [reply.result() for reply in replies]
        readings = tuple(reply.get("description") or f"(no reading: {reply['error']})" for reply in answers)  # type: ignore[assignment]
    return Explanation(
        name,
        response,
        f"{_FINAL}; without one the library looks through these characters itself",
        _place(answer),
        (("given to the library", symbolic.answer_text(response)), ("read as", readings[0])),
        (("given to the library", symbolic.marked(ground_truth)), ("read as", readings[1])),
        compared,
        _verdict(name, response, ground_truth, reward),
    )


def _explain_own(name: str, response: str, ground_truth: str, reward: Reward) -> Explanation:
    return Explanation(
        name,
        response,
        "whatever the function reads",
        None,
        (),
        (("as it stands", ground_truth),),
        f"{name} is called with the response, the ground truth and an empty problem",
        _verdict(name, response, ground_truth, reward),
    )


_EXPLAINED: dict[str, Callable[[str, str, str, Reward], Explanation]] = {
    "dapo": _explain_dapo,
    "dapo_2026_08": _explain_dapo,
    "boxed": _explain_boxed,
    "integer": _explain_integer,
    "math_verify": _explain_math_verify,
}


def _place(answer: FinalAnswer | None) -> tuple[int, int] | None:
    return None if answer is None else (answer.start, answer.end)


def _changes(steps: list[Step]) -> list[Step]:
    """The first step and those that changed the text."""
    return [steps[0], *(step for before, step in pairwise(steps) if step[1] != before[1])]


def render(explanation: Explanation) -> Group:
    """The explanation for a terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    verdict = explanation.verdict
    colour = {"right": "green", "wrong": "red"}.get(verdict.outcome, "yellow")
    lines: list[Text | Padding] = [Text(f"scorer {explanation.scorer}", style="bold")]
    lines.append(Text(f"looks for: {explanation.looked_for}"))
    if explanation.place is None:
        lines.append(Text("found: nothing" if verdict.outcome == "no_answer" else "found: no box and no answer line"))
    else:
        start, end = explanation.place
        lines.append(Text(f"found: at character {start} of {len(explanation.response)}"))
        lines.append(Padding(_in_context(explanation.response, start, end), (0, 0, 0, 2), expand=False))
    for title, steps in (("answer", explanation.answer_steps), ("ground truth", explanation.ground_truth_steps)):
        if steps:
            lines.append(Text(f"{title}:"))
            lines += [Padding(Text(f"{visible(text)}  [{words}]"), (0, 0, 0, 2), expand=False) for words, text in steps]
    lines.append(Text(f"compared: {explanation.compared}"))
    reason = f" ({verdict.error})" if verdict.error else ""
    lines.append(Text(f"verdict: {verdict.outcome}, score {verdict.score:+g}{reason}", style=f"bold {colour}"))
    return Group(*lines)


def _in_context(response: str, start: int, end: int) -> Text:
    from rich.text import Text

    before, after = max(0, start - _CONTEXT_CHARACTERS), min(len(response), end + _CONTEXT_CHARACTERS)
    return Text.assemble(
        "..." if before else "",
        visible(response[before:start]),
        ("»", "bold"),
        (visible(response[start:end]), "reverse"),
        ("«", "bold"),
        visible(response[end:after]),
        "..." if after < len(response) else "",
    )


def visible(text: str) -> str:
    r"""Text on one line with what cannot be seen written out, cut in the middle when very long.

    >>> visible("Answer:\n34\x00")
    'Answer:\\n34\\x00'
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    half = _SHOWN_CHARACTERS // 2
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:half]} ... {shown[-half:]}"
