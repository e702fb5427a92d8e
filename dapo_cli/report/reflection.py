"""Responses that re-check, go back or reconsider, by a list of phrases in two languages (docs/reflection.md)."""

from __future__ import annotations

import re

PHRASES = {
    "re-check": (
        "let me check",
        "let me verify",
        "let's check",
        "let's verify",
        "double-check",
        "double check",
        "check again",
        "verify this",
        "to verify",
        "验证一下",
        "检查一下",
        "检验一下",
        "再检查",
        "再验证",
        "重新检查",
    ),
    "go back": (
        "let me try again",
        "let's try again",
        "try again",
        "start over",
        "go back",
        "let me redo",
        "let's redo",
        "re-examine",
        "reexamine",
        "recalculate",
        "重新计算",
        "重新考虑",
        "重新来",
        "回到前面",
        "再算一遍",
    ),
    "reconsider": (
        "wait",
        "hold on",
        "actually, ",
        "on second thought",
        "i made a mistake",
        "made an error",
        "that's wrong",
        "this is wrong",
        "that is not right",
        "that's not right",
        "not correct",
        "alternatively",
        "however, this",
        "等等",
        "等一下",
        "不对",
        "我错了",
        "算错了",
        "另一种方法",
        "换一种方法",
        "换个思路",
    ),
}
"""What counts, by kind; letters of either case, English as whole words."""


def _pattern() -> re.Pattern[str]:
    parts = []
    for kind, phrases in PHRASES.items():
        words = "|".join(rf"\b{re.escape(p)}(?!\w)" if p.isascii() else re.escape(p) for p in phrases)
        parts.append(f"(?P<{kind.replace('-', '_').replace(' ', '_')}>{words})")
    return re.compile("|".join(parts), re.IGNORECASE)


_PATTERN = _pattern()


def first_reflection(text: str) -> tuple[str, int, int] | None:
    """Kind, begin and end of the first phrase of the list in `text`; None where there is none.

    >>> first_reflection("So 5. Wait, 2 + 2 is 4.")
    ('reconsider', 6, 10)
    >>> first_reflection("The waiter brings 4.") is None
    True
    """
    match = _PATTERN.search(text)
    if match is None:
        return None
    kind = {"re_check": "re-check", "go_back": "go back"}.get(match.lastgroup or "", match.lastgroup or "")
    return kind, match.start(), match.end()
