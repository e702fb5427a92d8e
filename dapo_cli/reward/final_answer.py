"""Where a response states its answer: its last box or its last `Answer:` line. Nothing is evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ANSWER_CHARACTERS = 4000
"""An answer further from the end than this is not the final one, and a long response costs no more than a short one."""

_TOKENS = re.compile(r"<\|[^|<>]{0,40}\|>|</?[a-z_]{1,20}>|[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BRACE_OR_ESCAPE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX_CONTENT = re.compile(r"\s*([^\s{}$\\]+)")
_ANSWER = re.compile(r"(?:answer\W{0,4}?\s*[:：]|答案\s*[:：])", re.IGNORECASE)
_NOTHING_YET = re.compile(r"[\s*_`$>]*(?:\\[\[(])?[\s*_`$]*")


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """A part of a response: `text` is what stands at `start` up to `end`."""

    text: str
    start: int
    end: int
    form: Literal["box", "answer line"]


def last_box(text: str, first: int = 0) -> FinalAnswer | None:
    r"""The content of the last `\boxed{...}` or `\fbox{...}` at or after `first`, or of `\boxed 34` without braces.

    The last box decides: None when it is never closed.

    >>> last_box(r"\boxed{1} and \boxed{\frac{1}{2}}.").text
    '\\frac{1}{2}'
    >>> last_box(r"\boxed{1} and \boxed{2") is None
    True
    """
    start = max(text.rfind("\\boxed", first), text.rfind("\\fbox", first))
    if start < 0 or (opening := _BOX.match(text, start)) is None:
        return None
    inside = opening.end()
    brace = inside + len(text[inside : inside + 20]) - len(text[inside : inside + 20].lstrip())
    if text[brace : brace + 1] != "{":
        bare = _BARE_BOX_CONTENT.match(text, inside)
        return None if bare is None else FinalAnswer(bare[1], bare.start(1), bare.end(1), "box")
    depth = 0
    for found in _BRACE_OR_ESCAPE.finditer(text, brace):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return FinalAnswer(text[brace + 1 : found.start()], brace + 1, found.start(), "box")
    return None


def last_answer_line(text: str, first: int = 0) -> FinalAnswer | None:
    """What stands after the last `Answer:` at or after `first`, up to the end of its line.

    Any case, and a full-width colon or 答案, count too. An answer that starts on a later line, as in display
    mathematics, is taken from there.

    >>> last_answer_line("Answer: 1 no, Answer: 2\\nDone.").text
    '2'
    """
    found = list(_ANSWER.finditer(text, first))
    if not found:
        return None
    last = found[-1]
    opening = _NOTHING_YET.match(text, last.end())
    assert opening is not None  # every part of the pattern may be empty
    line_end = text.find("\n", opening.end())
    end = len(text) if line_end < 0 else line_end
    start = last.end() if "\n" not in text[last.end() : opening.end()] else opening.end()
    answer = text[start:end].strip()
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return FinalAnswer(answer, start, start + len(answer), "answer line") if answer else None


def final_answer(response: str) -> FinalAnswer | None:
    r"""The box or answer line that starts last, among the last 4,000 characters.

    A box inside an answer line starts after it, and so is the answer.

    >>> final_answer("Answer: $\\boxed{204}$").text, final_answer("\\boxed{1}\nAnswer: 2").text
    ('204', '2')
    """
    first = max(0, len(response) - ANSWER_CHARACTERS)
    found = [answer for answer in (last_answer_line(response, first), last_box(response, first)) if answer is not None]
    return max(found, key=lambda answer: answer.start, default=None)


def without_tokens(text: str) -> str:
    """Text without a model's special tokens and without control characters.

    >>> without_tokens("204<|im_end|></s>")
    '204'
    """
    return _TOKENS.sub("", text)
