"""Paired comparisons against closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.mechanisms.statistics import holm, paired, two_sided_p


def test_a_paired_t_is_the_one_of_the_textbook():
    # Student's sleep data, which every textbook has: effect 1.58, t 4.0621 with 9 degrees of freedom, p 0.00283.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    result = paired(first, second)
    assert result.effect == pytest.approx(1.58)
    assert result.t == pytest.approx(4.0621, abs=1e-4)
    assert result.p == pytest.approx(0.002833, abs=1e-6)
    assert (result.low, result.high) == (pytest.approx(0.7001, abs=1e-3), pytest.approx(2.4599, abs=1e-3))
    assert (result.agreeing, result.pairs) == (9, 10)


def test_equal_differences_are_certain_and_none_are_nothing():
    assert paired([1.0, 2.0], [2.0, 3.0]).p == 0.0
    assert paired([1.0, 2.0], [2.0, 3.0]).t == math.inf
    nothing = paired([1.0, 2.0], [1.0, 2.0])
    assert (nothing.effect, nothing.t, nothing.p) == (0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="as many runs of both arms"):
        paired([1.0], [1.0])


@pytest.mark.parametrize(("t", "degrees", "p"), [(1.0, 1, 0.5), (2.262157, 9, 0.05), (3.0, 30, 0.00539)])
def test_p_values_are_students(t, degrees, p):
    assert two_sided_p(t, degrees) == pytest.approx(p, rel=2e-3)
    assert two_sided_p(-t, degrees) == two_sided_p(t, degrees)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(p <= after <= 1 for p, after in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert [adjusted[index] for index in order] == sorted(adjusted)
    assert adjusted[order[0]] == min(1.0, len(p_values) * p_values[order[0]])
