"""What a score over P problems with n samples each is worth: avg@n, pass@k and two 95% intervals. Pure mathematics.

`num_correct` is [P], the right answers of each problem out of `num_samples`. The interval over samples answers "what
would this model score on these very problems, sampled without end"; the interval over problems answers "what would it
score on problems like these", and is much wider when problems are few.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Lower and upper bound of a 95% confidence interval, within [0, 1]."""

    low: float
    high: float


def avg_at_n(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> float:
    """Mean over samples, then over problems.

    Raises:
        ValueError: no problems, no samples, or a count outside [0, num_samples].

    >>> avg_at_n(np.array([1, 4]), 4)
    0.625
    """
    return float(_rates(num_correct, num_samples).mean())


def pass_at_k(num_correct: npt.NDArray[np.integer[Any]], num_samples: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right: mean of 1 - C(n - c, k) / C(n, k) (Chen et al. 2021).

    Raises:
        ValueError: k outside [1, num_samples], or counts that `avg_at_n` refuses.

    >>> pass_at_k(np.array([1]), 4, 2)
    0.5
    """
    _rates(num_correct, num_samples)
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@k: k must be between 1 and the {num_samples} samples, got {k}")
    total = math.comb(num_samples, k)
    return sum(1 - math.comb(num_samples - int(c), k) / total for c in num_correct) / len(num_correct)


def stderr_over_samples(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> float:
    """Standard error of avg@n on these fixed problems.

    The variance of a problem's rate is p (1 - p) / n with p = (c + 1/2) / (n + 1), so that 0 of n and n of n, which
    have no spread of their own, still count as uncertain.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    _rates(num_correct, num_samples)
    smoothed = (num_correct + 0.5) / (num_samples + 1)  # [P]
    return float(np.sqrt((smoothed * (1 - smoothed)).sum() / num_samples)) / len(num_correct)


def stderr_over_problems(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> float:
    """Standard error of avg@n over problems: Bessel std of the problems' rates / sqrt(P); nan for one problem.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    rates = _rates(num_correct, num_samples)
    return float(rates.std(ddof=1)) / math.sqrt(len(rates)) if len(rates) > 1 else math.nan


def interval_over_samples(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> Interval:
    """95% interval of avg@n on these fixed problems: avg@n +- 1.96 `stderr_over_samples`, cut to [0, 1].

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    mean = avg_at_n(num_correct, num_samples)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * stderr_over_samples(num_correct, num_samples)
    return Interval(max(0.0, mean - half), min(1.0, mean + half))


def interval_over_problems(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> Interval:
    """95% interval of avg@n for problems like these: Wilson's, with a t quantile and `effective_samples`.

    The t quantile has P - 1 degrees of freedom; one problem says nothing about others, so its interval is [0, 1].

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    mean = avg_at_n(num_correct, num_samples)
    if len(num_correct) == 1:
        return Interval(0.0, 1.0)
    t = t_quantile((1 + CONFIDENCE) / 2, len(num_correct) - 1)
    size = effective_samples(num_correct, num_samples)
    centre = (mean + t * t / (2 * size)) / (1 + t * t / size)
    half = t / (1 + t * t / size) * math.sqrt(mean * (1 - mean) / size + t * t / (4 * size * size))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def effective_samples(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> float:
    """How many independent answers the P x n are worth (design effect): m (1 - m) / s^2, within [P, P n].

    m is avg@n and s `stderr_over_problems`. With every answer right or every answer wrong nothing is known of the
    spread between problems, and the size is the cautious P.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    mean, problems = avg_at_n(num_correct, num_samples), len(num_correct)
    if mean in (0.0, 1.0) or problems == 1:
        return float(problems)
    variance = stderr_over_problems(num_correct, num_samples) ** 2
    most = float(problems * num_samples)
    return most if variance == 0 else min(max(mean * (1 - mean) / variance, float(problems)), most)


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


def _rates(num_correct: npt.NDArray[np.integer[Any]], num_samples: int) -> npt.NDArray[np.float64]:
    """Share of right answers of each problem, [P]."""
    if len(num_correct) == 0 or num_samples < 1:
        raise ValueError(f"a score needs problems and samples, got {len(num_correct)} problems x {num_samples} samples")
    if num_correct.min() < 0 or num_correct.max() > num_samples:
        raise ValueError(f"right answers of a problem must be between 0 and {num_samples}, got {num_correct.tolist()}")
    rates: npt.NDArray[np.float64] = num_correct / num_samples
    return rates
