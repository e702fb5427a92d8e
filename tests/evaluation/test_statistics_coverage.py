"""Do 95% intervals hold the truth 95% of the time? A small part of benchmarks/interval_coverage.py, seeded."""

import numpy as np
import pytest

from dapo_cli.evaluation import statistics as stats

PROBLEMS, RUNS = 30, 800
SLACK = 0.015  # two standard errors of a share of 95% over 800 runs


def simulate(mean, n, spread, runs=RUNS):
    """Chances and right answers of `runs` benchmarks, [runs, P] each; a small spread puts problems near 0 and 1."""
    rng = np.random.default_rng(7)
    chances = rng.beta(spread * mean, spread * (1 - mean), (runs, PROBLEMS))
    return chances, rng.binomial(n, chances)


def share_within(intervals, truths):
    return np.mean([low <= truth <= high for (low, high), truth in zip(intervals, truths, strict=True)])


@pytest.mark.parametrize(("mean", "n", "spread"), [(0.2, 8, 0.5), (0.5, 32, 0.5), (0.8, 16, 1.5), (0.4, 8, 5.0)])
def test_both_intervals_cover_93_to_97_percent(mean, n, spread):
    chances, counts = simulate(mean, n, spread)
    on_these = share_within([stats.interval_over_samples(c, n) for c in counts], chances.mean(axis=1))
    on_alike = share_within([stats.interval_over_problems(c, n) for c in counts], [mean] * RUNS)
    assert 0.93 - SLACK <= on_these <= 0.97 + SLACK
    assert 0.93 - SLACK <= on_alike <= 0.97 + SLACK


@pytest.mark.parametrize(("mean", "n"), [(0.02, 2), (0.02, 32), (0.98, 4), (0.5, 1), (0.1, 3)])
def test_the_interval_over_samples_holds_near_0_and_1_and_with_few_samples(mean, n):
    chances, counts = simulate(mean, n, 0.5)
    assert share_within([stats.interval_over_samples(c, n) for c in counts], chances.mean(axis=1)) >= 0.93 - SLACK


def test_the_interval_over_problems_holds_near_zero_where_t_intervals_fail():
    _, counts = simulate(0.02, 4, 1.5)
    means, half = counts.mean(1) / 4, 2.0452 * (counts / 4).std(1, ddof=1) / PROBLEMS**0.5
    assert np.mean(np.abs(means - 0.02) <= half) < 0.8
    assert share_within([stats.interval_over_problems(c, 4) for c in counts], [0.02] * RUNS) > 0.93


@pytest.mark.parametrize(("mean", "n", "lift"), [(0.3, 8, 0.0), (0.5, 32, 0.5), (0.1, 8, 0.5)])
def test_intervals_of_a_paired_difference_hold(mean, n, lift):
    rng = np.random.default_rng(11)
    chances = rng.beta(mean, 1 - mean, (RUNS, PROBLEMS))
    powers = np.exp(-lift + 0.6 * rng.standard_normal((RUNS, PROBLEMS)))  # the other model, correlated by problem
    truth = chances**powers - chances
    pairs = zip(rng.binomial(n, chances), rng.binomial(n, chances**powers), strict=True)
    found = [stats.paired_difference(before, after, n, n) for before, after in pairs]
    assert 0.93 - SLACK <= share_within([each.over_samples for each in found], truth.mean(axis=1)) <= 0.97 + SLACK
    assert share_within([each.over_problems for each in found], [truth.mean()] * RUNS) >= 0.93 - SLACK
