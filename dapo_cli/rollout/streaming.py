"""Responses while they are sampled: who hears of new tokens, and the text that can be shown so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dapo_cli.rollout.response_text import response_text
from dapo_cli.types import FinishReason, Sampling

OnTokens = Callable[[int, int, Sequence[int], FinishReason | None], None]
"""Called with the request's index, the response's seed, its new tokens, and with the last of them why it ended."""

_UNFINISHED = "\ufffd"
"""What a tokenizer makes of bytes that are not yet a whole character."""


class TextStream:
    """The text of one response token by token; all parts joined are the text of the whole response.

    Nothing is given out that a later token could take back: the bytes of an unfinished character, and what may be the
    beginning of a stop string.
    """

    def __init__(self, tokenizer: Any, sampling: Sampling) -> None:
        self.ids: list[int] = []
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._held_characters = max((len(stop) for stop in sampling.stop_strings), default=1) - 1
        self._text = ""  # of the tokens up to _read
        self._given = 0  # characters of it
        self._window = self._read = 0  # tokens from _window on are decoded together, those up to _read are in _text

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` add."""
        self.ids.extend(ids)
        known, now = self._decode(self._window, self._read), self._decode(self._window, len(self.ids))
        if len(now) <= len(known) or now.endswith(_UNFINISHED):
            return ""
        self._text += now[len(known) :]
        self._window, self._read = self._read, len(self.ids)
        stops = [self._text.find(stop, self._given) for stop in self._sampling.stop_strings]
        end = min([len(self._text) - self._held_characters, *(place for place in stops if place >= 0)])
        return self._give(self._text[self._given : end])

    def end(self) -> str:
        """The text that was held back, after the last token."""
        return self._give(self.text[self._given :])

    @property
    def text(self) -> str:
        """The text of the whole response so far, as the scorer sees it."""
        return response_text(np.array(self.ids, dtype=np.int32), self._sampling, self._tokenizer)

    def _give(self, part: str) -> str:
        self._given += len(part)
        return part

    def _decode(self, first: int, last: int) -> str:
        text: str = self._tokenizer.decode(self.ids[first:last], skip_special_tokens=True)
        return text
