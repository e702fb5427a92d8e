import pytest

from dapo_cli.evaluation.html_text import shorten, visible, written_bytes


@pytest.mark.parametrize("text", ["", "abc", "<" * 1000, "a" * 500 + "<é😀\x00\ud800" * 200, "数" * 1000])
@pytest.mark.parametrize("room", [1, 10, 1000, 20_000])
def test_shortened_text_fits_and_is_the_text(text, room):
    short = shorten(text, room)
    assert written_bytes(short.head) + written_bytes(short.tail) <= room
    head = (len(text) - short.omitted_characters) // 3 if short.omitted_characters else len(text)
    assert short.head == visible(text[:head])
    assert short.tail == visible(text[head + short.omitted_characters :])
    assert (short.omitted_characters == 0) == (written_bytes(visible(text)) <= room)
