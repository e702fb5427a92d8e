"""The public DAPO rule as verl has it since August 2026: a box counts where there is no `Answer:` line.

The answer line is read exactly as in `dapo_rule`. Without one in the last 300 characters, the content of the last
`\\boxed{...}` that lies wholly in the last 100 characters is normalised and compared in the same way.
"""

from __future__ import annotations

from dapo_cli.reward import dapo_rule
from dapo_cli.types import Verdict

BOX_CHARACTERS = 100
"""Only boxes in the end of a response are looked at."""

NO_ANSWER = "[INVALID]"
"""What the public code has in place of a missing answer; an answer line that says just this counts as missing too."""


def score(response: str, ground_truth: str) -> Verdict:
    r"""Judge one response: +1 when its answer line, else its last box, equals `ground_truth` after normalisation.

    >>> score(r"So it is \boxed{34}.", "34")
    Verdict(score=1.0, outcome='right', prediction='34', error=None)
    >>> score("\\boxed{34}\nAnswer: 35", "34").outcome
    'wrong'
    """
    verdict = dapo_rule.score(response, ground_truth)
    if verdict.prediction not in (None, NO_ANSWER):
        return verdict
    box = box_in_the_end(response)
    if box is None:
        return verdict
    prediction = dapo_rule.normalise(box[0])
    if prediction == dapo_rule.normalise(ground_truth):
        return Verdict(1.0, "right", prediction)
    return Verdict(-1.0, "wrong", prediction)


def box_in_the_end(response: str) -> tuple[str, int] | None:
    r"""Content of the last `\boxed{...}` of the last 100 characters, and where in the response it starts.

    None when there is none there or its braces do not close. Unlike `final_answer.last_box`, an escaped brace counts
    as a brace, as in the public code.

    >>> box_in_the_end(r"\boxed{\frac{1}{2}}.")
    ('\\frac{1}{2}', 7)
    """
    first = max(0, len(response) - BOX_CHARACTERS)
    start = response.rfind("\\boxed{", first)
    if start < 0:
        return None
    inside, depth = start + len("\\boxed{"), 1
    for position in range(inside, len(response)):
        depth += {"{": 1, "}": -1}.get(response[position], 0)
        if depth == 0:
            return response[inside:position], inside
    return None
