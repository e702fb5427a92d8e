"""How often the 95% intervals of an evaluation hold the truth, by simulation (docs/evaluation_statistics.md).

    python benchmarks/interval_coverage.py [--runs 2000] [--problems 30] [--seed 7]

A run draws the chance of each problem from a Beta distribution of the given mean and spread a + b (0.5: most problems
near 0 or 1, as in AIME; 1.5: flat; 5: all of middling difficulty), then the right answers of n samples. The interval
over samples has to hold the mean chance of the problems drawn, the interval over problems the mean of the distribution.
For differences a second model has the chances p ** exp(-0.5 + 0.6 z), z normal, on the same problems: a better one, and
correlated by problem. Its counts are known in the paired comparison; of a published score only the mean of 32 samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from dapo_cli.evaluation import statistics

SPREADS = (0.5, 1.5, 5.0)
SAMPLES = (1, 2, 3, 4, 8, 16, 32)
MEANS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99)
CLAIMED_MEANS, CLAIMED_SAMPLES = (0.2, 0.8), 8
DIFFERENCE_SAMPLES = (1, 2, 8, 32)
DIFFERENCE_MEANS = (0.02, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
LIFT, NOISE, PUBLISHED_SAMPLES = 0.5, 0.6, 32

Chances = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Difference = statistics.Difference | statistics.PairedDifference
Compare = Callable[[np.random.Generator, Chances, Counts, int], "list[Difference]"]
Coverage = tuple[float, float]
"""In percent: of the interval over samples, and of the interval over problems."""


def share_within(intervals: Iterable[statistics.Interval], truths: npt.ArrayLike) -> float:
    """Share of the intervals that hold their truth, in percent."""
    low, high = np.array(list(intervals)).T
    return 100 * float(np.mean((low <= truths) & (truths <= high)))


def draw_chances(rng: np.random.Generator, spread: float, mean: float, shape: int | tuple[int, int]) -> Chances:
    """Chances of problems."""
    return rng.beta(spread * mean, spread * (1 - mean), shape)


def improved(rng: np.random.Generator, chances: Chances) -> Chances:
    """Chances of the better model."""
    powers: Chances = chances ** np.exp(-LIFT + NOISE * rng.standard_normal(chances.shape))
    return powers


def score_coverage(shape: tuple[int, int], seed: int, spread: float, mean: float, samples: int) -> Coverage:
    """Of avg@n over runs x problems."""
    rng = np.random.default_rng(seed)
    chances = draw_chances(rng, spread, mean, shape)
    counts = rng.binomial(samples, chances)
    on_these = (statistics.interval_over_samples(row, samples) for row in counts)
    on_alike = (statistics.interval_over_problems(row, samples) for row in counts)
    return share_within(on_these, chances.mean(axis=1)), share_within(on_alike, np.full(shape[0], mean))


def paired(rng: np.random.Generator, chances: Chances, after: Counts, samples: int) -> list[Difference]:
    """Comparisons of `after`, [runs, P], with the other model's counts."""
    pairs = zip(rng.binomial(samples, chances), after, strict=True)
    return [statistics.paired_difference(one, two, samples, samples) for one, two in pairs]


def to_published(rng: np.random.Generator, chances: Chances, after: Counts, samples: int) -> list[Difference]:
    """Comparisons of `after`, [runs, P], with the other model's mean."""
    scores = rng.binomial(PUBLISHED_SAMPLES, chances).mean(axis=1) / PUBLISHED_SAMPLES
    published = [statistics.Published(float(score), PUBLISHED_SAMPLES) for score in scores]
    pairs = zip(after, published, strict=True)
    return [statistics.published_difference(row, samples, score) for row, score in pairs]


def difference_coverage(
    shape: tuple[int, int], seed: int, spread: float, compare: Compare, mean: float, samples: int
) -> Coverage:
    """Of the better model's score minus the other's."""
    rng = np.random.default_rng(seed)
    many = draw_chances(rng, spread, mean, 500_000)
    expected = float((improved(rng, many) - many).mean())
    chances = draw_chances(rng, spread, mean, shape)
    better = improved(rng, chances)
    found = compare(rng, chances, rng.binomial(samples, better), samples)
    on_these = share_within((each.over_samples for each in found), (better - chances).mean(axis=1))
    return on_these, share_within((each.over_problems for each in found), np.full(shape[0], expected))


def table(
    title: str, means: Sequence[float], samples: Sequence[int], cell: Callable[[float, int], Coverage]
) -> dict[tuple[float, int], Coverage]:
    """Print a table in markdown, means down and samples across; returns its cells."""
    print(f"\n{title}\n\n| mean | " + " | ".join(f"n = {n}" for n in samples) + " |")
    print("|" + " --- |" * (len(samples) + 1))
    cells: dict[tuple[float, int], Coverage] = {}
    for mean in means:
        cells |= {(mean, n): cell(mean, n) for n in samples}
        print(
            f"| {mean} | " + " | ".join("{:.1f} / {:.1f}".format(*cells[mean, n]) for n in samples) + " |", flush=True
        )
    return cells


def main() -> None:
    """Print all tables, and the extremes of the cells that the documentation makes a claim about."""
    parser = argparse.ArgumentParser(description="Coverage of 95%% intervals, by simulation.")
    for name, default in (("--runs", 2000), ("--problems", 30), ("--seed", 7)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    shape, claimed = (options.runs, options.problems), []
    for spread in SPREADS:
        scores = table(f"Score, spread {spread}", MEANS, SAMPLES, partial(score_coverage, shape, options.seed, spread))
        low, high = CLAIMED_MEANS
        claimed += [each for (mean, n), each in scores.items() if low <= mean <= high and n >= CLAIMED_SAMPLES]
        for name, compare in (("Paired difference", paired), ("Difference to a published score", to_published)):
            cell = partial(difference_coverage, shape, options.seed, spread, compare)
            table(f"{name}, spread {spread}", DIFFERENCE_MEANS, DIFFERENCE_SAMPLES, cell)
    for place, name in enumerate(("samples", "problems")):
        values = [found[place] for found in claimed]
        print(f"\nClaimed cells over {name}: {min(values):.1f} to {max(values):.1f}%, {len(values)} cells")


if __name__ == "__main__":
    main()
