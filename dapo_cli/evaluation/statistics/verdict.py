"""What a score says, in one line and no more than it can say. Values are in percent, differences in points."""

from __future__ import annotations

from dapo_cli.evaluation.statistics.comparison import ASSUMED_SAMPLES, PairedDifference, Published, published_difference
from dapo_cli.evaluation.statistics.intervals import Interval, interval_over_problems, interval_over_samples
from dapo_cli.evaluation.statistics.scores import Counts, Samples, avg_at_n


def verdict_line(num_correct: Counts, num_samples: Samples, published: Published | None = None) -> str:
    """A score with its interval on these problems, and what follows for a published score on the same problems.

    A difference may separate on these very problems and not on problems like these: 50 against 42 on 30 problems is
    such a one, and the line says so. Without a published score, the line has the interval on problems like these.

    Raises:
        ValueError: counts that `avg_at_n` refuses, or a published score that `published_difference` refuses.

    >>> import numpy as np
    >>> counts = np.array([0, 8, 16, 24, 32] * 6)
    >>> verdict_line(counts, 32, Published(0.51, 32))
    '50.0 (95% 47.7-52.3 on these 30 problems); public 51: difference -1.0 +/- 3.2, consistent'
    """
    these = _these(len(num_correct))
    score, on_these = avg_at_n(num_correct, num_samples), interval_over_samples(num_correct, num_samples)
    if published is None:
        alike = _range(interval_over_problems(num_correct, num_samples))
        return f"{100 * score:.1f} (95% {_range(on_these)} on {these}, {alike} on problems like these)"
    difference, over_samples, over_problems = published_difference(num_correct, num_samples, published)
    assumed = f" (its {ASSUMED_SAMPLES} samples per problem assumed)" if published.samples is None else ""
    return (
        f"{100 * score:.1f} (95% {_range(on_these)} on {these}); "
        f"{published.name} {100 * published.score:.4g}{assumed}: "
        f"difference {_change(difference, over_samples)}, "
        f"{_published_verdict(difference, over_samples, over_problems, these)}"
    )


def comparison_line(paired: PairedDifference, before: str = "before", after: str = "after") -> str:
    """Two results on the same problems: the difference on these problems, on problems like these, and by problem."""
    these = _these(paired.better + paired.worse + paired.equal)
    return (
        f"{after} {100 * paired.after:.1f}, {before} {100 * paired.before:.1f}: "
        f"difference {_change(paired.difference, paired.over_samples)} on {these}, {_direction(paired.over_samples)}; "
        f"paired, on problems like these {_change(paired.difference, paired.over_problems)}, "
        f"{_direction(paired.over_problems)}; better on {paired.better}, worse on {paired.worse}, "
        f"equal on {paired.equal} (sign test p {paired.sign_test:.2g})"
    )


def _published_verdict(difference: float, over_samples: Interval, over_problems: Interval, these: str) -> str:
    direction = _direction(over_samples)
    alike = _change(difference, over_problems)
    if direction == "consistent":
        return direction
    if _direction(over_problems) == "consistent":
        return f"{direction} on {these} only: {alike} on problems like these, unless both are paired by problem"
    return f"{direction}, on problems like these too ({alike})"


def _direction(interval: Interval) -> str:
    """What an interval of a difference says of 0."""
    return "higher" if interval.low > 0 else "lower" if interval.high < 0 else "consistent"


def _change(difference: float, interval: Interval) -> str:
    """A difference in points with its half width, or with both bounds where it lies far from their middle."""
    below, above = difference - interval.low, interval.high - difference
    if abs(below - above) <= 0.1 * (below + above):
        return f"{100 * difference:+.1f} +/- {50 * (below + above):.1f}"
    return f"{100 * difference:+.1f} (95% {100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def _range(interval: Interval) -> str:
    return f"{100 * interval.low:.1f}-{100 * interval.high:.1f}"


def _these(num_problems: int) -> str:
    return "this 1 problem" if num_problems == 1 else f"these {num_problems} problems"
