"""Numbers read off a run's curve: where it crosses a level, and its height at some number of updates or tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

Point = Mapping[str, float]
"""step, updates, tokens, and the values that were measured there."""
Axis = Literal["step", "updates", "tokens"]


def crossing(points: Sequence[Point], value: str, level: float, axis: Axis) -> float | None:
    """Where `value` first reaches `level`, on a straight line between two points; None where it never does.

    >>> crossing([{"updates": 0, "share": 0.0}, {"updates": 8, "share": 0.5}], "share", 0.25, "updates")
    4.0
    """
    known = [(point[axis], point[value]) for point in points if value in point]
    for index, (place, height) in enumerate(known):
        if height >= level:
            if index == 0:
                return float(place)
            before, below = known[index - 1]
            return float(before + (place - before) * (level - below) / (height - below))
    return None


def height(points: Sequence[Point], value: str, axis: Axis, place: float) -> float:
    """The value at a place of an axis, on straight lines between points; beyond the last point, that of the last.

    >>> height([{"tokens": 0, "share": 0.1}, {"tokens": 8, "share": 0.3}], "share", "tokens", 4)
    0.2
    """
    # Of points at one place, as steps without an update have on the axis of updates, the last counts.
    known = {float(point[axis]): float(point[value]) for point in points if value in point}
    return round(float(np.interp(place, list(known), list(known.values()))), 12)
