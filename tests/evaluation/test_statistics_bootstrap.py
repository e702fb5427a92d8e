from collections import Counter

import numpy as np
import pytest

from dapo_cli.evaluation import statistics as stats


def by_the_definition(predictions, correct, k):
    """Mean and std per problem as verl defines them, with numpy's global generator as verl uses it."""
    found = []
    for answers, verdicts in zip(predictions, correct, strict=True):
        outcomes = {"best": [], "worst": [], "maj": []}
        np.random.seed(42)
        for _ in range(1000):
            draw = np.random.choice(len(answers), size=k, replace=True)
            votes = Counter(answers[index] for index in draw)
            winner = max(votes, key=votes.__getitem__)
            outcomes["best"].append(max(verdicts[index] for index in draw))
            outcomes["worst"].append(min(verdicts[index] for index in draw))
            outcomes["maj"].append(next(verdicts[index] for index in draw if answers[index] == winner))
        found.append([value for each in outcomes.values() for value in (np.mean(each), np.std(each))])
    return np.mean(found, axis=0)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (3, 2), (8, 4), (32, 32)])
def test_bootstrap_equals_the_definition_to_the_draw(n, k):
    rng = np.random.default_rng(n)
    predictions = [[None if answer == 0 else str(answer) for answer in row] for row in rng.integers(0, 4, (5, n))]
    correct = [[bool(right) for right in row] for row in rng.integers(0, 2, (5, n))]
    state = np.random.get_state()
    try:
        expected = by_the_definition(predictions, correct, k)
    finally:
        np.random.set_state(state)
    assert stats.bootstrap_at_k(predictions, correct, k) == pytest.approx(expected, abs=1e-12)


def test_the_global_generator_is_not_touched():
    before = np.random.get_state()
    stats.bootstrap_at_k([["1", "2", "3"]], [[True, False, False]], 3)
    after = np.random.get_state()
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]


@pytest.mark.parametrize(("right", "best"), [(1, 0.62), (4, 0.987)])
def test_best_at_32_is_below_the_unbiased_pass_at_32(right, best):
    correct = [True] * right + [False] * (32 - right)
    found = stats.bootstrap_at_k([["7" if each else "3" for each in correct]], [correct], 32)
    assert found.best_mean == pytest.approx(best)
    assert stats.pass_at_k(np.array([right]), 32, 32) == 1
