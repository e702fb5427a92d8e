from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_cli.evaluation import statistics as stats
from dapo_cli.evaluation.statistics import voting

samples = st.lists(st.tuples(st.sampled_from(["1", "2", "3", None]), st.booleans()), min_size=1, max_size=6)
consistent = samples.map(lambda row: [(answer, answer == "2") for answer, _ in row])


def first_seen_vote(draw):
    """Verdict of the most frequent answer of a draw, the first seen among equals, as the public code decides."""
    counts = Counter(answer for answer, _ in draw)  # in order of first sight
    winner = max(counts, key=counts.__getitem__)
    return next(right for answer, right in draw if answer == winner)


def columns(rows):
    return [[answer for answer, _ in row] for row in rows], [[right for _, right in row] for row in rows]


@settings(max_examples=60, deadline=None)
@given(samples | consistent, st.data())
def test_majority_equals_the_enumeration_of_all_ordered_draws(row, data):
    k = data.draw(st.integers(1, len(row)))
    draws = [first_seen_vote([row[index] for index in draw]) for draw in permutations(range(len(row)), k)]
    found = stats.majority_at_k(*columns([row]), k)
    assert found.score == pytest.approx(np.mean(draws), abs=1e-12)
    assert (found.simulated_problems, found.stderr) == (0, 0)


@given(st.lists(samples, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_majority_does_not_depend_on_order(rows, random):
    rows = [row * 2 for row in rows]
    shuffled = [random.sample(row, len(row)) for row in random.sample(rows, len(rows))]
    assert stats.majority_at_k(*columns(shuffled), 2).score == pytest.approx(
        stats.majority_at_k(*columns(rows), 2).score
    )


@pytest.mark.parametrize("n", [1, 2, 3, 32])
def test_majority_of_one_or_two_is_avg_at_n(n):
    rng = np.random.default_rng(n)
    predictions = [[str(answer) for answer in row] for row in rng.integers(0, 4, (10, n))]
    correct = [[answer == "1" for answer in row] for row in predictions]
    avg = stats.avg_at_n(np.array([sum(row) for row in correct]), n)
    for k in (1, min(2, n)):  # two that differ are a tie, won by either
        assert stats.majority_at_k(predictions, correct, k).score == pytest.approx(avg)


def test_ties_of_all_samples_are_shared_in_expectation_and_won_by_the_first_in_order():
    predictions, correct = (
        [["5", "7", "7", "5"], ["1", "1", "2", "3"]],
        [[True, False, False, True], [True, True, False, False]],
    )
    assert stats.majority_at_k(predictions, correct, 4).score == 0.75  # half a tie and a win
    assert stats.majority_in_order(predictions, correct) == (1.0, 1)
    assert (
        stats.majority_in_order([row[1:] + row[:1] for row in predictions], [[False, False, True, True]] * 2).ties == 1
    )
    assert stats.majority_in_order([["7", "5"]], [[False, True]]) == (0.0, 1)


def test_no_answer_is_an_answer_that_can_win():
    assert stats.majority_at_k([[None, None, "7"]], [[False, False, True]], 3).score == 0
    assert stats.majority_in_order([[None, None, "7"]], [[False, False, True]]) == (0.0, 0)


def test_majority_of_32_by_the_multivariate_hypergeometric():
    predictions, correct = [["a"] * 12 + ["b"] * 11 + ["c"] * 6 + ["d", "e", "f"]], [[True] * 12 + [False] * 20]
    drawn = np.random.default_rng(0).multivariate_hypergeometric([12, 11, 6, 1, 1, 1], 9, size=200_000)
    winners = drawn == drawn.max(axis=1, keepdims=True)
    expected = (winners[:, 0] / winners.sum(axis=1)).mean()
    assert stats.majority_at_k(predictions, correct, 9).score == pytest.approx(expected, abs=0.004)


def test_a_thousand_samples_are_still_counted_exactly():
    # two answers, k odd: the chance is that of a hypergeometric above k/2, here by symmetry one half
    found = stats.majority_at_k([["a"] * 500 + ["b"] * 500], [[True] * 500 + [False] * 500], 15)
    assert found == (pytest.approx(0.5, abs=1e-12), 0, 0.0)


def test_the_simulation_agrees_with_the_exact_count_says_so_and_repeats(monkeypatch):
    rng = np.random.default_rng(4)
    predictions = [[str(answer) for answer in row] for row in rng.integers(0, 3, (6, 12))]
    correct = [[answer == "1" for answer in row] for row in predictions]
    exact = stats.majority_at_k(predictions, correct, 5)
    monkeypatch.setattr(voting, "MAX_EXACT_WORK", 0)
    simulated = stats.majority_at_k(predictions, correct, 5)
    assert simulated.simulated_problems == 6
    assert 0 < simulated.stderr < 0.003
    assert abs(simulated.score - exact.score) < 4 * simulated.stderr
    assert stats.majority_at_k(predictions, correct, 5) == simulated
    assert stats.majority_at_k(predictions, correct, 5, seed=1).score != simulated.score


def test_only_problems_too_large_are_simulated():
    large = ["1"] * 600 + ["2"] * 401
    found = stats.majority_at_k([large, ["1"] * 9], [[answer == "1" for answer in large], [True] * 9], 9)
    assert found.simulated_problems == 1
    assert found.score == pytest.approx((1 + 0.73) / 2, abs=0.01)  # binomial(9, 0.6) above 4: 0.733


@pytest.mark.parametrize(
    ("predictions", "correct", "k"),
    [([], [], 1), ([["1"]], [[True, False]], 1), ([["1"]], [], 1), ([["1"]], [[True]], 2), ([["1"]], [[True]], 0)],
)
def test_votes_that_cannot_be_are_refused(predictions, correct, k):
    with pytest.raises(ValueError, match=r"vote needs|k must be between"):
        stats.majority_at_k(predictions, correct, k)
    with pytest.raises(ValueError, match=r"vote needs|k must be between"):
        stats.bootstrap_at_k(predictions, correct, k)
