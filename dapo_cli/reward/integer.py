"""Integers however they are written: leading zeros, 204.0, 2.04e2, bold, units, quotes, LaTeX spaces, a closing token.

The answer is the last box or answer line. It must be one number, alone or in words; nothing is computed, so that
100+104 is not 204. Digit strings are compared, of any length.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dapo_cli.reward.final_answer import final_answer, last_box, without_tokens
from dapo_cli.types import Verdict

_WRAPPERS = re.compile(r"\\(?:text(?:bf|rm)?|math(?:bf|rm|it|sf)|bm|boldsymbol|boxed|fbox|mbox|operatorname)\b")
_SPACES = re.compile(r"\\[,;:! ]|\\quad|\\qquad|~|[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_MARKUP = re.compile(r"\\[()\[\]$%]|\\left|\\right|\\displaystyle|[*`\"'{}$€£¥%°“”‘’]|__|\^\s*\{?\s*\\circ\s*\}?")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\s*\^\s*[23]\b")
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_MINUS = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63", "-"))
_TIMES_POWER = re.compile(r"\s*(?:\\times|\\cdot|×|x)\s*10\s*\^\s*\{?\s*([+-]?\s*\d{1,3})\s*\}?")
_GROUPED = r"\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+"
_NUMBER = re.compile(rf"(?<![\w.,^])([+-]?)\s*({_GROUPED})(?:\.(\d*))?(?:[eE]([+-]?\d{{1,3}}))?(?![\w^])(?!\.\d)")
_OPERATOR = re.compile(
    r"[*/^_\\<>|]|(?<=[\d)])\s*[-+]\s*(?=[\d(])|(?<=[A-Za-z])(?<!\d[eE])(?:[-+]|\s+[-+]\s+)(?=\d)|[(\[]\s*-?\d+\s*,"
)


def score(response: str, ground_truth: str) -> Verdict:
    r"""Judge one response: +1 when its final answer is the same integer as `ground_truth`, else -1.

    Without a box or an answer line in the last 4,000 characters the outcome is `no_answer`; a ground truth that is no
    integer is a `verifier_error`, never a wrong answer.

    >>> score("**Answer: 0204.0 minutes**<|im_end|>", "204")
    Verdict(score=1.0, outcome='right', prediction='204', error=None)
    """
    wanted = read_ground_truth(ground_truth)
    if wanted is None:
        return Verdict(0.0, "verifier_error", None, f"the ground truth {ground_truth[:80]!r} is not an integer")
    answer = final_answer(response)
    if answer is None:
        return Verdict(-1.0, "no_answer", None)
    cleaned = clean(answer.text)
    number = read_integer(cleaned)
    if number == wanted:
        return Verdict(1.0, "right", number)
    return Verdict(-1.0, "wrong", cleaned[:300] if number is None else number)


def read_ground_truth(ground_truth: str) -> str | None:
    """The integer of a ground truth, out of its box where it has one; None when it is none."""
    box = last_box(ground_truth)
    return read_integer(clean(ground_truth if box is None else box.text))


def _side_with_the_number(text: str) -> str:
    """Of an equation the last side that is a number alone; else the last side."""
    sides = text.split("=")
    alone = [side for side in sides if _NUMBER.fullmatch(side.strip())]
    return (alone or sides)[-1]


def _powers_of_ten(text: str) -> str:
    return _TIMES_POWER.sub(lambda found: "e" + found[1].replace(" ", ""), text)


STEPS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("full-width characters and minus signs as in ASCII", lambda text: text.translate(_FULL_WIDTH).translate(_MINUS)),
    ("special tokens and control characters removed", without_tokens),
    ("thousands separators of LaTeX", lambda text: text.replace("{,}", ",").replace(",\\!", ",")),
    ("LaTeX and Unicode spaces as spaces", lambda text: _SPACES.sub(" ", text)),
    ("text and box commands removed", lambda text: _WRAPPERS.sub(" ", text)),
    ("powers of ten as an exponent", _powers_of_ten),
    ("braces, markup, quotes, currency, percent and degrees removed", lambda text: _MARKUP.sub("", text)),
    ("powers of units removed", lambda text: _UNIT_POWER.sub("", text)),
    ("the side of an equation that is a number", _side_with_the_number),
    ("spaces and closing punctuation removed", lambda text: text.strip().rstrip(".,;:!").strip()),
)
"""What `clean` does, in words, step by step."""


def clean(answer: str) -> str:
    r"""An answer without what does not matter to its value.

    >>> clean(r"$m + n = \mathbf{1{,}234}$.")
    '1,234'
    """
    for _, step in STEPS:
        answer = step(answer)
    return answer


def read_integer(cleaned: str) -> str | None:
    """The one integer of a cleaned answer in canonical digits, None when there is none, several, or an expression.

    >>> [read_integer(text) for text in ("-0", "007", "2.04e2", "the sum is 9", "3 of 5", "100+104", "20.5")]
    ['0', '7', '204', '9', None, None, None]
    """
    if _OPERATOR.search(cleaned):
        return None
    found = {_canonical(*match.groups(default="")) for match in _NUMBER.finditer(cleaned)}
    outside = _NUMBER.sub(" ", cleaned)
    if len(found) != 1 or any(character.isdigit() for character in outside):
        return None
    return found.pop()


def _canonical(sign: str, whole: str, fraction: str, exponent: str) -> str | None:
    """Sign and digits without leading zeros; None for a number that is not whole."""
    digits = "".join(str(int(digit)) for digit in whole if digit not in ", ")
    decimals = "".join(str(int(digit)) for digit in fraction)
    shift = int(exponent or "0")
    point = len(digits) + shift
    padded = (digits + decimals).ljust(max(point, 0), "0")
    if point < 0 and padded.strip("0"):
        return None
    whole_part, rest = padded[: max(point, 0)], padded[max(point, 0) :]
    if rest.strip("0"):
        return None
    stripped = whole_part.lstrip("0") or "0"
    return f"-{stripped}" if sign == "-" and stripped != "0" else stripped
