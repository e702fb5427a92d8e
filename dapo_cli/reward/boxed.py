r"""The last `\boxed{...}` of a response equals the ground truth as a string, after the DAPO rule's normalisation."""

from __future__ import annotations

import re

from dapo_cli.reward import dapo_rule
from dapo_cli.reward.final_answer import ANSWER_CHARACTERS, last_box
from dapo_cli.types import Verdict

_FRACTION_STYLE = re.compile(r"\\[dt]frac")


def score(response: str, ground_truth: str) -> Verdict:
    r"""Judge one response by its last box: +1 when the content equals `ground_truth` after normalisation, else -1.

    `\fbox{...}` and `\boxed 34` are boxes too. A last box that is not closed, or none in the last 4,000 characters, is
    `no_answer`. A ground truth may carry a box of its own.

    >>> score(r"Thus \boxed{\dfrac12}.", r"\frac{1}{2}").outcome
    'right'
    """
    box = last_box(response, max(0, len(response) - ANSWER_CHARACTERS))
    if box is None:
        return Verdict(-1.0, "no_answer", None)
    prediction = normalise(box.text)
    if prediction == normalise_ground_truth(ground_truth):
        return Verdict(1.0, "right", prediction)
    return Verdict(-1.0, "wrong", prediction)


def normalise(answer: str) -> str:
    r"""The DAPO rule's normalisation, with `\dfrac` and `\tfrac` as `\frac`.

    >>> normalise(r"x = \tfrac12")
    '\\frac{1}{2}'
    """
    return dapo_rule.normalise(as_plain_fractions(answer))


def as_plain_fractions(answer: str) -> str:
    r"""`\dfrac` and `\tfrac` written as `\frac`."""
    return _FRACTION_STYLE.sub(r"\\frac", answer)


def normalise_ground_truth(ground_truth: str) -> str:
    """The same for a ground truth, out of its box where it has one."""
    box = last_box(ground_truth)
    return normalise(ground_truth if box is None else box.text)
