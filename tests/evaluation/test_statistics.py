from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.evaluation import statistics as stats

counts = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.lists(st.integers(0, n), min_size=1, max_size=40).map(np.array), st.just(n))
)


def test_avg_at_n_averages_samples_then_problems():
    assert stats.avg_at_n(np.array([0, 1, 2, 4]), 4) == 7 / 16


@pytest.mark.parametrize("n", [1, 2, 3, 32])
def test_pass_at_1_is_avg_at_n_and_pass_at_n_is_any_right(n):
    num_correct = np.array([0, 1, n, n])
    assert stats.pass_at_k(num_correct, n, 1) == pytest.approx(stats.avg_at_n(num_correct, n))
    assert stats.pass_at_k(num_correct, n, n) == 3 / 4


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_pass_at_k_equals_the_enumeration_of_all_draws(k):
    n, num_correct = 6, np.array([0, 1, 2, 5])
    draws = [[any(index < c for index in draw) for draw in combinations(range(n), k)] for c in num_correct]
    assert stats.pass_at_k(num_correct, n, k) == pytest.approx(np.mean([np.mean(d) for d in draws]))


def test_effective_samples_on_these_problems_by_hand():
    size = stats.effective_samples_on_these_problems
    # n = 4, c = 1 and 3: v = 2 * (3 / (16 * 3)) / 4 = 1/32, m(1-m)/v = 0.25 * 32 = 8 = P n
    assert size(np.array([1, 3]), 4) == pytest.approx(8)
    # c = 4, 3, 0, 1: v = 2 * (3 / 48) / 16 = 1/128, m(1-m)/v = 32, twice P n
    assert size(np.array([4, 3, 0, 1]), 4) == pytest.approx(32)
    assert size(np.array([2, 2]), 4) == 8  # 0.25 / (2 * (4 / 48) / 4) = 6, below P n
    assert size(np.array([0, 4]), 4) == 8  # no spread within problems: P n, not without end
    assert size(np.array([4] * 10 + [0] * 10 + [1]), 4) == 8 * 84  # at most 8 P n
    assert size(np.array([0, 1, 1]), 1) == 3  # one sample each: no spread to see


def test_interval_over_samples_is_wilson_with_the_normal_quantile():
    # c = 4, 3, 0, 1 of 4: m = 0.5, size 32, z^2 = 3.841459: half = z / (1 + z^2/32) sqrt(0.25/32 + z^2 / 4096)
    half = 1.959964 / (1 + 3.841459 / 32) * (0.25 / 32 + 3.841459 / 4096) ** 0.5
    assert stats.interval_over_samples(np.array([4, 3, 0, 1]), 4) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert stats.stderr_over_samples(np.array([4, 3, 0, 1]), 4) == pytest.approx(half / 1.959964)


def test_interval_over_samples_of_nothing_right_is_that_of_all_samples_together():
    # 0 of 60: z^2 / (60 + z^2)
    assert stats.interval_over_samples(np.zeros(30, int), 2) == pytest.approx((0, 3.841459 / 63.841459), abs=1e-7)


def test_problems_weigh_the_same_whatever_their_samples():
    num_correct, n = np.array([1, 4, 3]), np.array([2, 4, 12])
    assert stats.avg_at_n(num_correct, n) == pytest.approx((1 / 2 + 1 + 1 / 4) / 3)
    # k = 2: 1 of 2 -> 1; 4 of 4 -> 1; 3 of 12 -> 1 - 36/66
    assert stats.pass_at_k(num_correct, n, 2) == pytest.approx((2 + 30 / 66) / 3)
    # no spread between problems: P^2 / sum(1/n) = 4 / (1/2 + 1/4) = 16/3
    assert stats.effective_samples(np.array([1, 2]), np.array([2, 4])) == pytest.approx(16 / 3)
    with pytest.raises(ValueError, match="between 1 and the 2 samples"):
        stats.pass_at_k(num_correct, n, 3)
    with pytest.raises(ValueError, match="3 problems have counts of right answers, 2 of samples"):
        stats.avg_at_n(num_correct, n[:2])


@given(counts)
def test_equal_samples_may_be_given_by_problem(case):
    num_correct, n = case
    for function in (stats.avg_at_n, stats.interval_over_samples, stats.interval_over_problems):
        assert function(num_correct, np.full(len(num_correct), n)) == pytest.approx(function(num_correct, n))


def test_effective_samples_is_the_design_effect_within_its_bounds():
    # rates 0.25, 0.5, 0.75: m = 0.5, Bessel variance 0.0625, s^2 = 0.0625 / 3, m(1-m)/s^2 = 0.25 * 3 / 0.0625 = 12
    assert stats.effective_samples(np.array([2, 4, 6]), 8) == pytest.approx(12)
    assert stats.effective_samples(np.array([0, 0, 8]), 8) == 3  # 2/9 / ((1/3) / 3) = 2, below P = 3
    assert stats.effective_samples(np.array([4, 4, 4]), 8) == 24  # no spread: P n
    assert stats.effective_samples(np.array([8, 8, 8]), 8) == 3  # all right: cautious P


def test_interval_over_problems_is_wilson_with_t():
    # P = 3: t(0.975, 2) = 4.302653, size 12, m = 0.5: centre 0.5,
    # half = t / (1 + t^2/12) * sqrt(0.25/12 + t^2 / (4 * 144)), t^2 = 18.512821
    half = 4.302653 / (1 + 18.512821 / 12) * (0.25 / 12 + 18.512821 / 576) ** 0.5
    assert stats.interval_over_problems(np.array([2, 4, 6]), 8) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


def test_one_problem_says_nothing_about_others():
    assert stats.interval_over_problems(np.array([3]), 4) == (0, 1)
    assert np.isnan(stats.stderr_over_problems(np.array([3]), 4))


def test_interval_over_problems_is_about_30_points_wide_on_30_problems():
    rates = np.random.default_rng(0).beta(0.5, 0.5, 30)
    low, high = stats.interval_over_problems(np.random.default_rng(1).binomial(32, rates), 32)
    assert 0.2 < high - low < 0.4


@pytest.mark.parametrize(
    ("probability", "df", "value"),
    [  # published tables of Student's t
        (0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 3, 3.1824), (0.975, 4, 2.7764), (0.975, 9, 2.2622),
        (0.975, 29, 2.0452), (0.975, 30, 2.0423), (0.975, 120, 1.9799), (0.95, 10, 1.8125), (0.995, 5, 4.0321),
        (0.5, 7, 0.0),
    ],
)  # fmt: skip
def test_t_quantile_matches_the_tables(probability, df, value):
    assert stats.t_quantile(probability, df) == pytest.approx(value, abs=5e-5)


def test_t_quantile_tends_to_the_normal_quantile():
    # Cornish-Fisher: z + (z^3 + z) / (4 df), with z = 1.959964
    assert stats.t_quantile(0.975, 4999) == pytest.approx(1.959964 + 9.489162 / 19996, abs=1e-6)


@given(counts)
def test_intervals_hold_the_score_and_do_not_depend_on_order(case):
    num_correct, n = case
    mean = stats.avg_at_n(num_correct, n)
    for interval in (stats.interval_over_samples, stats.interval_over_problems):
        low, high = interval(num_correct, n)
        assert 0 <= low <= mean + 1e-12
        assert mean - 1e-12 <= high <= 1
        assert interval(num_correct[::-1], n) == pytest.approx((low, high))


@given(counts)
def test_intervals_mirror_when_right_and_wrong_swap(case):
    num_correct, n = case
    for interval in (stats.interval_over_samples, stats.interval_over_problems):
        low, high = interval(num_correct, n)
        assert interval(n - num_correct, n) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(("num_correct", "n"), [([], 4), ([1], 0), ([5], 4), ([-1], 4)])
def test_impossible_counts_are_refused(num_correct, n):
    with pytest.raises(ValueError, match=r"samples|between"):
        stats.interval_over_problems(np.array(num_correct, dtype=np.int64), n)


@pytest.mark.parametrize("k", [0, 5])
def test_k_outside_the_samples_is_refused(k):
    with pytest.raises(ValueError, match="between 1 and the 4 samples"):
        stats.pass_at_k(np.array([1]), 4, k)


@pytest.mark.parametrize(("probability", "df"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_impossible_quantiles_are_refused(probability, df):
    with pytest.raises(ValueError, match="t quantile"):
        stats.t_quantile(probability, df)
