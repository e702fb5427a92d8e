"""Student's t from its exact distribution function, so that intervals need no statistics library."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache
def t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Quantile of Student's t for a probability in [0.5, 1), by bisection of the exact distribution function.

    Raises:
        ValueError: a probability outside [0.5, 1), or fewer than 1 degree of freedom.

    >>> round(t_quantile(0.975, 29), 4)
    2.0452
    """
    if not 0.5 <= probability < 1 or degrees_of_freedom < 1:
        raise ValueError(f"t quantile: need 0.5 <= probability < 1 and 1 degree of freedom, got {probability}")
    low, high = 0.0, math.pi / 2  # of atan(t / sqrt(df)), which is bounded
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + _t_mass(middle, degrees_of_freedom)) / 2 < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees_of_freedom) * math.tan(low)


def _t_mass(theta: float, degrees_of_freedom: int) -> float:
    """P(|T| <= t) for theta = atan(t / sqrt(df)), as a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    cosine, odd = math.cos(theta), degrees_of_freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(odd, degrees_of_freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if odd else total
