"""The public DAPO rule in its form of May 2025: the text after the last `Answer:` equals the ground truth.

Equal means equal as strings after `normalise`. The rule is kept exactly, oddities included ("cents204" is 204,
"Answer: 34." is not 34), because scores are only comparable under the same rule. No text is ever evaluated.
"""

from __future__ import annotations

import re
from itertools import pairwise

from dapo_cli.types import Verdict

SCORED_CHARACTERS = 300
"""Only the end of a response is looked at."""

_ANSWER_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)

_REPLACEMENTS = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
"""Applied in this order, each to the result of the one before."""

# fmt: off
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
)
# fmt: on
"""Deleted wherever they occur, in this order."""

_NEEDED_BY_REMOVALS_AND_LATEX = re.compile(r'[A-Za-z\\{"]')
"""Every removal, wrapper and shorthand below needs one of these characters; most answers are bare numbers without."""

_MATH_PAIR = re.compile(r".*?\$(.*?)\$.*")
_WRAPPERS = tuple(re.compile(rf"\\{name}\{{(.*?)\}}") for name in ("text", "textbf", "overline"))
_BOXED = re.compile(r"\\boxed\{(.*)\}")
_SHORT_FRACTION = re.compile(r"frac([^{])(.)")
_SHORT_ROOT = re.compile(r"sqrt([^{])")


def score(response: str, ground_truth: str) -> Verdict:
    """Judge one response: +1 when its last answer line equals `ground_truth` after normalisation, else -1.

    Without an answer line in the last 300 characters the outcome is `no_answer` and the prediction None. Never raises,
    whatever the strings hold.

    >>> score("3 + 4 is seven.\\nAnswer: $7$", "7")
    Verdict(score=1.0, outcome='right', prediction='7', error=None)
    """
    answer = extract(response)
    if answer is None:
        return Verdict(-1.0, "no_answer", None)
    prediction = normalise(answer)
    if prediction == normalise(ground_truth):
        return Verdict(1.0, "right", prediction)
    return Verdict(-1.0, "wrong", prediction)


def extract(response: str) -> str | None:
    """The rest of the line after the last `Answer:` (any case) in the last 300 characters; None without one.

    The answer is returned as written, and may start on a later line than the colon.

    >>> extract("Answer: 3\\nNo. ANSWER:\\n 4 ")
    '4 '
    """
    answers: list[str] = _ANSWER_LINE.findall(response[-SCORED_CHARACTERS:])
    return answers[-1] if answers else None


def normalise(answer: str) -> str:
    """The form in which a prediction and a ground truth are compared.

    >>> [normalise(text) for text in (r"x = \\frac12", r"$1{,}007$ meters", r"\\boxed{34}")]
    ['\\\\frac{1}{2}', '1007', '34']
    """
    text = answer.rsplit("=", 1)[-1]
    for old, new in _REPLACEMENTS:
        text = text.replace(old, new)
    plain = _NEEDED_BY_REMOVALS_AND_LATEX.search(text) is None
    if not plain:
        for removed in _REMOVED:
            text = text.replace(removed, "")
    text = _MATH_PAIR.sub(r"$\1$", text)
    if not plain:
        text = _expand_latex(text)
    text = text.replace("$", "")
    without_commas = text.replace(",", "")
    return (without_commas if without_commas.isdigit() else text).strip()


def normalisation_steps(answer: str) -> list[tuple[str, str]]:
    """The stages of `normalise` for a reader: (what was done, the text after it), those that changed nothing left out.

    The first is the answer as written, and the last text is `normalise(answer)`.

    >>> normalisation_steps("m + n = 1,007")[-1]
    ('commas of a number', '1007')
    """
    steps = [("as written", answer), ("the part after the last =", answer.rsplit("=", 1)[-1])]
    text = steps[-1][1]
    for old, new in _REPLACEMENTS:
        text = text.replace(old, new)
    steps.append(("the rule's replacements", text))
    for removed in _REMOVED:
        text = text.replace(removed, "")
    steps.append(("units and words removed", text))
    text = _MATH_PAIR.sub(r"$\1$", text)
    steps.append(("the first $...$ alone", text))
    text = _expand_latex(text)
    steps.append(("text and boxes unwrapped, short fractions and roots written out", text))
    text = text.replace("$", "")
    steps.append(("dollar signs removed", text))
    without_commas = text.replace(",", "")
    text = without_commas if without_commas.isdigit() else text
    steps.append(("commas of a number", text))
    steps.append(("spaces at the ends removed", text.strip()))
    changed = [step for before, step in pairwise(steps) if step[1] != before[1]]
    return [steps[0], *changed]


def _expand_latex(text: str) -> str:
    """Unwrap text and boxes, and put the braces of short fractions and roots."""
    for wrapper in _WRAPPERS:
        text = wrapper.sub(r"\1", text)
    text = _BOXED.sub(r"\1", text)
    text = _SHORT_FRACTION.sub(r"frac{\1}{\2}", text)
    return _SHORT_ROOT.sub(r"sqrt{\1}", text)


def answer_example(answer: str) -> str:
    """A response that gives `answer` in the format the prompt asks for.

    >>> answer_example("42")
    'Answer: 42'
    """
    return f"Answer: {answer}"
