"""Paired comparisons over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dapo_cli.evaluation.statistics import t_quantile


@dataclass(frozen=True, slots=True)
class Paired:
    """Treatment minus baseline over paired seeds."""

    baseline: float
    """Means of the arms."""
    treatment: float
    effect: float
    low: float
    """95% interval of the effect (Student)."""
    high: float
    t: float
    p: float
    """Two-sided, of no effect."""
    agreeing: int
    """Pairs whose difference has the sign of the effect."""
    pairs: int


def paired(baseline: Sequence[float], treatment: Sequence[float]) -> Paired:
    """The paired t comparison of equally many runs.

    >>> result = paired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    >>> result.effect, round(result.t, 4), round(result.p, 4)
    (2.0, 3.4641, 0.0742)

    Raises:
        ValueError: fewer than two pairs, or not pairs.
    """
    count = len(baseline)
    if count != len(treatment) or count < 2:
        raise ValueError(f"want as many runs of both arms, at least 2, got {count} and {len(treatment)}")
    differences = [there - here for here, there in zip(baseline, treatment, strict=True)]
    effect = sum(differences) / count
    deviation = math.sqrt(sum((each - effect) ** 2 for each in differences) / (count - 1))
    error = deviation / math.sqrt(count)
    t = effect / error if error else math.copysign(math.inf, effect) if effect else 0.0
    half = t_quantile(0.975, count - 1) * error
    agreeing = sum(each * effect > 0 for each in differences)
    means = sum(baseline) / count, sum(treatment) / count
    return Paired(*means, effect, effect - half, effect + half, t, two_sided_p(t, count - 1), agreeing, count)


def two_sided_p(t: float, degrees: int) -> float:
    """Chance of a Student t at least as far from 0, by inverting `t_quantile`.

    >>> round(two_sided_p(2.2621571628, 9), 6), two_sided_p(0.0, 9), two_sided_p(float("inf"), 3)
    (0.05, 1.0, 0.0)
    """
    size = abs(t)
    if math.isinf(size):
        return 0.0
    low, high = 0.5, 1.0 - 1e-15
    if size >= t_quantile(high, degrees):
        return 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_quantile(middle, degrees) < size else (low, middle)
    return 2 * (1 - low)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p of each (Holm 1979): what remains below 0.05 is significant over the whole family.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
