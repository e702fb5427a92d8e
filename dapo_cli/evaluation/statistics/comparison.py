"""Two scores on the same problems: the difference, what it is on these problems, and on problems like these.

Intervals of differences are built from the intervals of the two scores by Newcombe's square-and-add method (1998),
which keeps them honest near 0 and 1. Pure mathematics; counts and samples as in `scores`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dapo_cli.evaluation.statistics.intervals import (
    CONFIDENCE,
    NORMAL_QUANTILE,
    Interval,
    effective_samples,
    effective_samples_on_these_problems,
    independent_samples,
    interval_over_problems,
    interval_over_samples,
    wilson,
)
from dapo_cli.evaluation.statistics.scores import Counts, Samples, avg_at_n, rates, samples_by_problem
from dapo_cli.evaluation.statistics.student import t_quantile

ASSUMED_SAMPLES = 32
"""Samples per problem of a published score that does not tell: avg@32, as the paper evaluates."""


class Difference(NamedTuple):
    """A score minus another, in [-1, 1], with its intervals on the same fixed problems and on problems like these."""

    difference: float
    over_samples: Interval
    over_problems: Interval


class PairedDifference(NamedTuple):
    """`after` minus `before` on the same problems, and how many problems went which way."""

    before: float
    after: float
    over_samples: Interval
    """On these fixed problems."""
    over_problems: Interval
    """On problems like these, each asked of both."""
    better: int
    worse: int
    equal: int
    sign_test: float
    """p value, two-sided, of `better` against `worse`; 1 where no problem differs."""

    @property
    def difference(self) -> float:
        """after - before."""
        return self.after - self.before


class Published(NamedTuple):
    """Somebody's score on the same problems, in [0, 1]."""

    score: float
    samples: int | None = None
    """The n of its avg@n; None: not told, `ASSUMED_SAMPLES` is taken."""
    name: str = "public"


def paired_difference(
    before: Counts, after: Counts, samples_before: Samples, samples_after: Samples
) -> PairedDifference:
    """Compare two results whose arrays list the same problems in the same order.

    The interval over problems takes the correlation of the two results over problems into account, and is never
    narrower than the interval over samples, which it contains.

    Raises:
        ValueError: different numbers of problems, or counts that `avg_at_n` refuses.
    """
    if before.shape != after.shape:
        raise ValueError(f"a paired comparison needs the same problems, got {len(before)} and {len(after)}")
    first, second = avg_at_n(before, samples_before), avg_at_n(after, samples_after)
    over_samples = _newcombe(
        (first, interval_over_samples(before, samples_before)), (second, interval_over_samples(after, samples_after))
    )
    intervals = interval_over_problems(before, samples_before), interval_over_problems(after, samples_after)
    correlation = _correlation(before, after, samples_before, samples_after)
    paired = _newcombe((first, intervals[0]), (second, intervals[1]), correlation)
    over_problems = Interval(min(paired.low, over_samples.low), max(paired.high, over_samples.high))
    change = after * samples_by_problem(before, samples_before) - before * samples_by_problem(after, samples_after)
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    return PairedDifference(
        before=first,
        after=second,
        over_samples=over_samples,
        over_problems=over_problems if len(before) > 1 else Interval(-1.0, 1.0),
        better=better,
        worse=worse,
        equal=len(before) - better - worse,
        sign_test=sign_test(better, worse),
    )


def published_difference(num_correct: Counts, num_samples: Samples, published: Published) -> Difference:
    """Our score minus a published one on the same problems, of which only the mean is known.

    Its sampling error is taken from the assumption that its right answers are spread over the problems as ours are: an
    answer of theirs is worth as many independent ones as an answer of ours. Its counts by problem being unknown, the
    interval over problems cannot be paired, and is as wide as for two sets of problems.

    Raises:
        ValueError: a published score outside [0, 1] or with fewer than 1 sample, or counts that `avg_at_n` refuses.
    """
    samples = ASSUMED_SAMPLES if published.samples is None else published.samples
    if not 0 <= published.score <= 1 or samples < 1:
        raise ValueError(f"a published score is within [0, 1] of 1 sample or more, got {published}")
    ours, problems = avg_at_n(num_correct, num_samples), len(num_correct)
    worth = effective_samples_on_these_problems(num_correct, num_samples) / independent_samples(
        num_correct, num_samples
    )
    theirs = wilson(published.score, worth * problems * samples, NORMAL_QUANTILE)
    over_samples = _newcombe((published.score, theirs), (ours, interval_over_samples(num_correct, num_samples)))
    if problems == 1:
        return Difference(ours - published.score, over_samples, Interval(-1.0, 1.0))
    size = min(effective_samples(num_correct, num_samples), float(problems * samples))
    alike = wilson(published.score, size, t_quantile((1 + CONFIDENCE) / 2, problems - 1))
    over_problems = _newcombe((published.score, alike), (ours, interval_over_problems(num_correct, num_samples)))
    return Difference(ours - published.score, over_samples, over_problems)


def sign_test(better: int, worse: int) -> float:
    """Two-sided p value of so uneven a split of the problems that differ, were either way as likely; exact.

    >>> sign_test(5, 0)
    0.0625
    """
    differing = better + worse
    tail = sum(math.comb(differing, count) for count in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / (1 << differing))


def _newcombe(first: tuple[float, Interval], second: tuple[float, Interval], correlation: float = 0.0) -> Interval:
    """Interval of `second` minus `first` from each one's score and interval."""
    (a, (a_low, a_high)), (b, (b_low, b_high)) = first, second
    below = _combine(b - b_low, a_high - a, correlation)
    above = _combine(b_high - b, a - a_low, correlation)
    return Interval(max(-1.0, b - a - below), min(1.0, b - a + above))


def _combine(x: float, y: float, correlation: float) -> float:
    return math.sqrt(max(0.0, x * x + y * y - 2 * correlation * x * y))


def _correlation(before: Counts, after: Counts, samples_before: Samples, samples_after: Samples) -> float:
    """Pearson's correlation of the rates over problems; 0 where one of the two does not vary."""
    first, second = rates(before, samples_before), rates(after, samples_after)
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt(float((first**2).sum()) * float((second**2).sum()))
    shared = float((first * second).sum())
    return shared / scale if scale else 0.0
