"""Two 95% intervals of avg@n, over samples and over problems. Pure mathematics; arguments as in `scores`.

The interval over samples answers "what would this model score on these very problems, sampled without end"; the
interval over problems answers "what would it score on problems like these", and is much wider when problems are few.
Both are Wilson's with the number of independent answers that the samples are worth in place of their number.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from dapo_cli.evaluation.statistics.scores import Counts, Samples, avg_at_n, rates, samples_by_problem
from dapo_cli.evaluation.statistics.student import t_quantile

CONFIDENCE = 0.95
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
MOST_WORTH = 8.0
"""An answer counts at most as this many in the interval over samples, however little the samples seem to differ."""


class Interval(NamedTuple):
    """Lower and upper bound of a 95% confidence interval: of a score within [0, 1], of a difference within [-1, 1]."""

    low: float
    high: float


def interval_over_samples(num_correct: Counts, num_samples: Samples) -> Interval:
    """95% interval of avg@n on these fixed problems: Wilson's with `effective_samples_on_these_problems`.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    size = effective_samples_on_these_problems(num_correct, num_samples)
    return wilson(avg_at_n(num_correct, num_samples), size, NORMAL_QUANTILE)


def interval_over_problems(num_correct: Counts, num_samples: Samples) -> Interval:
    """95% interval of avg@n for problems like these: Wilson's, with a t quantile and `effective_samples`.

    The t quantile has P - 1 degrees of freedom; one problem says nothing about others, so its interval is [0, 1].

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    mean = avg_at_n(num_correct, num_samples)
    if len(num_correct) == 1:
        return Interval(0.0, 1.0)
    quantile = t_quantile((1 + CONFIDENCE) / 2, len(num_correct) - 1)
    return wilson(mean, effective_samples(num_correct, num_samples), quantile)


def wilson(mean: float, size: float, quantile: float) -> Interval:
    """Wilson's score interval of a share `mean` among `size` independent answers (Wilson 1927)."""
    square = quantile * quantile
    centre = (mean + square / (2 * size)) / (1 + square / size)
    half = quantile / (1 + square / size) * math.sqrt(mean * (1 - mean) / size + square / (4 * size * size))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def effective_samples(num_correct: Counts, num_samples: Samples) -> float:
    """How many independent answers the samples are worth for problems like these (design effect).

    It is m (1 - m) / s^2 within [P, `independent_samples`], with m avg@n and s `stderr_over_problems`. With every
    answer right or every answer wrong nothing is known of the spread between problems, and it is the cautious P.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    mean, problems = avg_at_n(num_correct, num_samples), len(num_correct)
    if mean in (0.0, 1.0) or problems == 1:
        return float(problems)
    variance = stderr_over_problems(num_correct, num_samples) ** 2
    most = independent_samples(num_correct, num_samples)
    return most if variance == 0 else min(max(mean * (1 - mean) / variance, float(problems)), most)


def effective_samples_on_these_problems(num_correct: Counts, num_samples: Samples) -> float:
    """How many independent answers of one and the same chance the samples are worth on these fixed problems.

    It is m (1 - m) / v within [1, `MOST_WORTH`] times `independent_samples`, with v the unbiased variance of avg@n
    within problems, mean of c (n - c) / (n^2 (n - 1)) / P. A problem with one sample has no spread of its own, and
    counts with the most it can have beside these others, m (1 - m). Where no problem shows a spread the size is the
    number of samples: samples that agree are no proof that all would.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    mean, samples = avg_at_n(num_correct, num_samples), samples_by_problem(num_correct, num_samples)
    within = num_correct * (samples - num_correct) / (samples**2 * np.maximum(samples - 1, 1))  # [P]
    variance = float(np.where(samples > 1, within, mean * (1 - mean)).sum()) / len(num_correct) ** 2
    least = independent_samples(num_correct, num_samples)
    return least if variance == 0 else min(max(mean * (1 - mean) / variance, least), MOST_WORTH * least)


def independent_samples(num_correct: Counts, num_samples: Samples) -> float:
    """Size of avg@n were all problems equally hard: P n, with unequal n P times their harmonic mean.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    rates(num_correct, num_samples)
    return len(num_correct) ** 2 / float((1 / samples_by_problem(num_correct, num_samples)).sum())


def stderr_over_samples(num_correct: Counts, num_samples: Samples) -> float:
    """Standard error of avg@n on these fixed problems: half of `interval_over_samples` over 1.96, so never 0.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    low, high = interval_over_samples(num_correct, num_samples)
    return (high - low) / (2 * NORMAL_QUANTILE)


def stderr_over_problems(num_correct: Counts, num_samples: Samples) -> float:
    """Standard error of avg@n over problems: Bessel std of the problems' rates / sqrt(P); nan for one problem.

    Raises:
        ValueError: counts that `avg_at_n` refuses.
    """
    shares = rates(num_correct, num_samples)
    return float(shares.std(ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
