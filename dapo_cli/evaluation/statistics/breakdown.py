"""What responses came to, by kind and by length. Pure functions over one entry per response."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from dapo_cli.types import FinishReason, Outcome


class ResponseRates(NamedTuple):
    """Shares of all responses, in [0, 1]."""

    truncated: float | None
    """Of the responses whose end is known; None where none is."""
    no_answer: float
    verifier_error: float
    unknown_end: int
    """Responses of which nobody told how they ended."""


class LengthBin(NamedTuple):
    """Responses of `low` to `high` tokens, both included; both are None for responses that nobody counted."""

    low: int | None
    high: int | None
    responses: int
    right: int

    @property
    def accuracy(self) -> float | None:
        """Share of right responses; None for an empty bin."""
        return self.right / self.responses if self.responses else None


def response_rates(outcomes: Sequence[Outcome], finish_reasons: Sequence[FinishReason | None]) -> ResponseRates:
    """Truncation, no-answer and verifier-error rates.

    Raises:
        ValueError: no responses, or sequences of different lengths.
    """
    if not outcomes or len(outcomes) != len(finish_reasons):
        raise ValueError(f"rates need an end for each response, got {len(outcomes)} and {len(finish_reasons)}")
    known = [reason for reason in finish_reasons if reason is not None]
    return ResponseRates(
        truncated=known.count("length") / len(known) if known else None,
        no_answer=outcomes.count("no_answer") / len(outcomes),
        verifier_error=outcomes.count("verifier_error") / len(outcomes),
        unknown_end=len(finish_reasons) - len(known),
    )


def accuracy_by_length(
    response_tokens: Sequence[int | None], correct: Sequence[bool], num_bins: int = 8
) -> list[LengthBin]:
    """Right answers in bins of equal width from the shortest response to the longest, in tokens.

    Fewer bins come out where there are fewer lengths. Responses of unknown length make a bin of their own, the last.

    Raises:
        ValueError: sequences of different lengths, a negative length, or fewer than 1 bin.

    >>> accuracy_by_length([1, 2, 4], [True, False, True], num_bins=2)[0]
    LengthBin(low=1, high=2, responses=2, right=1)
    """
    if len(response_tokens) != len(correct) or num_bins < 1:
        raise ValueError(f"{len(response_tokens)} lengths, {len(correct)} verdicts, {num_bins} bins")
    counted = [(tokens, right) for tokens, right in zip(response_tokens, correct, strict=True) if tokens is not None]
    bins = _equal_bins(counted, num_bins) if counted else []
    uncounted = [right for tokens, right in zip(response_tokens, correct, strict=True) if tokens is None]
    return [*bins, LengthBin(None, None, len(uncounted), sum(uncounted))] if uncounted else bins


def _equal_bins(counted: list[tuple[int, bool]], num_bins: int) -> list[LengthBin]:
    shortest, longest = min(counted)[0], max(counted)[0]
    if shortest < 0:
        raise ValueError(f"a response has a length of {shortest} tokens")
    span = longest - shortest + 1
    num_bins = min(num_bins, span)
    starts = [shortest + span * index // num_bins for index in range(num_bins)]
    verdicts: list[list[bool]] = [[] for _ in starts]
    for tokens, right in counted:
        verdicts[bisect_right(starts, tokens) - 1].append(right)
    ends = [*(start - 1 for start in starts[1:]), longest]
    return [LengthBin(*each) for each in zip(starts, ends, map(len, verdicts), map(sum, verdicts), strict=True)]
