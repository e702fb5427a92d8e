from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.evaluation import statistics as stats

pairs = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(st.integers(0, n[0]), st.integers(0, n[1])), min_size=1, max_size=20).map(np.array),
        st.just(n),
    )
)


def test_the_difference_on_these_problems_adds_the_two_squares():
    before, after = np.array([4, 3, 0, 1]), np.array([3, 4, 3, 2])
    found = stats.paired_difference(before, after, 4, 4)
    (low_a, high_a), (low_b, high_b) = stats.interval_over_samples(before, 4), stats.interval_over_samples(after, 4)
    assert (found.before, found.after, found.difference) == (0.5, 0.75, 0.25)
    assert found.over_samples.low == pytest.approx(0.25 - ((0.75 - low_b) ** 2 + (high_a - 0.5) ** 2) ** 0.5)
    assert found.over_samples.high == pytest.approx(0.25 + ((high_b - 0.75) ** 2 + (0.5 - low_a) ** 2) ** 0.5)
    assert (found.better, found.worse, found.equal) == (3, 1, 0)
    assert found.sign_test == pytest.approx(10 / 16)  # 2 (C(4, 0) + C(4, 1)) / 2^4


def test_problems_hard_for_both_make_the_paired_interval_narrow():
    before = np.array([2, 10, 20, 28, 32] * 6)
    after = np.minimum(before + 3, 32)
    unpaired = stats.paired_difference(before, after[np.random.default_rng(0).permutation(30)], 32, 32)
    paired = stats.paired_difference(before, after, 32, 32)
    width = paired.over_problems.high - paired.over_problems.low
    assert paired.difference == pytest.approx(unpaired.difference)
    assert width < 0.35 * (unpaired.over_problems.high - unpaired.over_problems.low)
    assert paired.over_problems.low > 0 > unpaired.over_problems.low


def test_equal_counts_are_not_certain_to_be_equal_scores():
    counts = np.array([0, 1, 1, 0, 1])
    found = stats.paired_difference(counts, counts, 1, 1)
    assert (found.difference, found.equal, found.sign_test) == (0, 5, 1)
    assert found.over_problems == found.over_samples
    assert found.over_samples.low < -0.3


@given(pairs)
def test_the_comparison_turns_round_with_its_sides(case):
    counts, (n, other) = case
    there = stats.paired_difference(counts[:, 0], counts[:, 1], n, other)
    back = stats.paired_difference(counts[:, 1], counts[:, 0], other, n)
    assert back.difference == pytest.approx(-there.difference)
    assert (back.better, back.worse, back.sign_test) == (there.worse, there.better, there.sign_test)
    for one, two in ((there.over_samples, back.over_samples), (there.over_problems, back.over_problems)):
        assert (two.low, two.high) == pytest.approx((-one.high, -one.low))
        assert -1 <= one.low <= there.difference + 1e-12
        assert there.difference - 1e-12 <= one.high <= 1


@given(pairs)
def test_the_interval_over_problems_holds_the_one_over_samples(case):
    counts, (n, other) = case
    found = stats.paired_difference(counts[:, 0], counts[:, 1], n, other)
    assert found.over_problems.low <= found.over_samples.low
    assert found.over_problems.high >= found.over_samples.high


def test_rates_are_compared_exactly_for_unequal_samples():
    # 1/3 = 11/33, 2/3 < 23/33, 3/3 > 32/33
    found = stats.paired_difference(np.array([1, 2, 3]), np.array([11, 23, 32]), 3, 33)
    assert (found.equal, found.better, found.worse) == (1, 1, 1)


def test_one_problem_says_nothing_about_others():
    assert stats.paired_difference(np.array([1]), np.array([4]), 4, 4).over_problems == (-1, 1)
    assert stats.published_difference(np.array([1]), 4, stats.Published(0.5)).over_problems == (-1, 1)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (3, 3), (5, 1), (0, 7)])
def test_the_sign_test_equals_the_enumeration_of_all_signs(better, worse):
    total, gap = better + worse, abs(better - worse)
    splits = [abs(2 * sum(signs) - total) >= gap for signs in product((0, 1), repeat=total)]
    assert stats.sign_test(better, worse) == pytest.approx(np.mean(splits))


def test_a_published_score_of_our_own_value_and_samples_has_our_own_error():
    counts = np.array([0, 8, 16, 24, 32] * 6)
    found = stats.published_difference(counts, 32, stats.Published(0.5, 32))
    low, high = stats.interval_over_samples(counts, 32)
    assert found.difference == 0
    assert found.over_samples == pytest.approx((-(2**0.5) * (high - low) / 2, 2**0.5 * (high - low) / 2))
    low, high = stats.interval_over_problems(counts, 32)
    assert found.over_problems == pytest.approx((-(2**0.5) * (high - low) / 2, 2**0.5 * (high - low) / 2))


def test_a_published_score_of_more_samples_is_surer_and_unknown_samples_are_32():
    counts = np.array([0, 8, 16, 24, 32] * 6)
    widths = [
        high - low
        for samples in (1, None, 32, 1024)
        for low, high in [stats.published_difference(counts, 32, stats.Published(0.42, samples)).over_samples]
    ]
    assert widths[0] > widths[1] == widths[2] > widths[3]


def test_50_against_42_separates_on_these_problems_only():
    counts = np.array([0, 8, 16, 24, 32] * 6)
    found = stats.published_difference(counts, 32, stats.Published(0.42, 32))
    assert found.over_samples.low > 0
    assert found.over_problems.low < 0


@pytest.mark.parametrize("published", [stats.Published(52.0), stats.Published(-0.1), stats.Published(0.5, 0)])
def test_published_scores_that_cannot_be_are_refused(published):
    with pytest.raises(ValueError, match="published score"):
        stats.published_difference(np.array([1, 2]), 4, published)


def test_other_numbers_of_problems_are_refused():
    with pytest.raises(ValueError, match="same problems, got 2 and 3"):
        stats.paired_difference(np.array([1, 2]), np.array([1, 2, 3]), 4, 4)
