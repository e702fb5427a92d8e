"""Text of models and datasets as an HTML page can hold it: nothing invisible, nothing that is not UTF-8, not too long.

Escaping of `<`, `>`, `&` and quotes is the template's; what it cannot do is done here.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import escape


def _shown_in_place() -> dict[int, str]:
    control = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    escaped = {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    # A direction override would reorder the text around it on the page.
    directions = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
    wide = {code: f"\\u{code:04x}" for code in (*directions, *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)}
    return {**control, 0x7F: "␡", **escaped, **wide}


_SHOWN = _shown_in_place()


def visible(text: str) -> str:
    r"""`text` with control characters, direction overrides and lone surrogates shown instead of sent.

    >>> visible("a\x00b\n" + chr(0xD800))
    'a␀b\n\\ud800'
    """
    return text.translate(_SHOWN)


def written_bytes(text: str) -> int:
    """Size of visible text once it is escaped and written as UTF-8."""
    return len(str(escape(text)).encode())


@dataclass(frozen=True, slots=True)
class Shortened:
    """Visible text whose middle may be left out; the answer stands at the end, so more of the end is kept."""

    head: str
    omitted_characters: int
    tail: str


def shorten(text: str, max_bytes: int) -> Shortened:
    """`text` made visible, in at most `max_bytes` on the page.

    >>> shorten("abcdefghi", 6)
    Shortened(head='ab', omitted_characters=3, tail='fghi')
    >>> shorten("abc", 6)
    Shortened(head='abc', omitted_characters=0, tail='')
    """
    keep = min(len(text), max_bytes)
    while True:
        omitted = len(text) - keep
        first = keep // 3 if omitted else keep
        head, tail = visible(text[:first]), visible(text[first + omitted :])
        size = written_bytes(head) + written_bytes(tail)
        if size <= max_bytes:
            return Shortened(head, omitted, tail)
        keep = min(keep - 1, keep * max_bytes // size)


def one_line(text: str, max_characters: int = 60) -> str:
    """`text` made visible in one line, its end replaced by … where it is longer.

    >>> one_line("1 +\\n 1", 4)
    '1 +…'
    """
    line = " ".join(visible(text[: 20 * max_characters]).split())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"
