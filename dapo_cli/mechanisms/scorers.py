"""The scorer of the task with many right answers, called in a worker process."""

from __future__ import annotations

from typing import Any

RIGHT_DIGITS = ("01234", "01234", "0123")
"""Which digits are right at each of the three places: 100 of 1,000 responses are."""


def three_right_digits(response: str, ground_truth: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Right: three digits, each among those that are right at its place, whatever the problem.

    >>> three_right_digits("403", "", {})["score"], three_right_digits("404", "", {})["score"]
    (1.0, -1.0)
    """
    fits = len(response) == len(RIGHT_DIGITS)
    right = fits and all(digit in digits for digit, digits in zip(response, RIGHT_DIGITS, strict=True))
    return {"score": 1.0 if right else -1.0, "prediction": response or None}
