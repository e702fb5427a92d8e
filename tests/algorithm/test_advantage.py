import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dapo_cli.algorithm.advantage import group_advantages


def right_of_sixteen(num_correct: int) -> np.ndarray:
    return np.array([[1.0] * num_correct + [-1.0] * (16 - num_correct)])


@pytest.mark.parametrize(
    ("num_correct", "right", "wrong"),
    [
        # mean = (2k - 16) / 16, Bessel std = sqrt((k (1 - mean)^2 + (16 - k) (1 + mean)^2) / 15)
        (1, 3.75, -0.25),  # mean -0.875, std 0.5
        (4, 1.6770, -0.5590),  # mean -0.5, std sqrt(12 / 15); the population std would give 1.7320
        (8, 0.96825, -0.96825),  # mean 0, std sqrt(16 / 15)
    ],
)
def test_bessel_std(num_correct, right, wrong):
    advantages = group_advantages(right_of_sixteen(num_correct), "group_std")
    assert advantages.dtype == np.float32
    assert advantages[0, :num_correct] == pytest.approx(right, abs=5e-5)
    assert advantages[0, num_correct:] == pytest.approx(wrong, abs=5e-5)


def test_epsilon_is_added_to_the_std():
    # Rewards +-1e-6 have Bessel std sqrt(2) * 1e-6: 1 / (1.41421356 + 1) = 0.41421356.
    assert group_advantages(np.array([[1e-6, -1e-6]]), "group_std")[0] == pytest.approx([0.41421356, -0.41421356])


def test_without_std():
    assert group_advantages(right_of_sixteen(4), "none")[0].tolist() == [1.5] * 4 + [-0.5] * 12


@pytest.mark.parametrize("normalize", ["group_std", "none"])
def test_group_of_one_has_its_reward_as_advantage(normalize):
    assert group_advantages(np.array([[1.0], [-1.5]]), normalize).tolist() == [[1.0], [-1.5]]


@pytest.mark.parametrize("normalize", ["group_std", "none"])
def test_uninformative_group_has_none(normalize):
    assert group_advantages(np.ones((2, 4)), normalize).tolist() == [[0.0] * 4] * 2


@settings(deadline=None)
@given(arrays(np.float64, (3, 5), elements=st.floats(-2, 1, width=32)))
def test_groups_are_independent_and_inputs_unchanged(rewards):
    before = rewards.copy()
    together = group_advantages(rewards, "group_std")
    assert np.array_equal(rewards, before)
    for group, alone in enumerate(together):
        assert np.array_equal(group_advantages(rewards[group : group + 1], "group_std")[0], alone)
