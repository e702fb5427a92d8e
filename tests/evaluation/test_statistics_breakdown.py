from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.evaluation import statistics as stats

responses = st.lists(st.tuples(st.none() | st.integers(0, 50), st.booleans()), min_size=1, max_size=60)


def test_rates_by_hand():
    outcomes = ["right", "no_answer", "verifier_error", "no_answer", "wrong"]
    found = stats.response_rates(outcomes, ["stop", "length", None, "stop", "stop"])
    assert found == (1 / 4, 2 / 5, 1 / 5, 1)  # truncated: of the 4 whose end is known


def test_truncation_is_unknown_where_nobody_told():
    assert stats.response_rates(["right"], [None]) == (None, 0, 0, 1)


def test_bins_by_hand():
    # 10 to 29 tokens in 4 bins of 5
    found = stats.accuracy_by_length([10, 14, 15, 29, 24, 29], [True, False, True, True, False, False], 4)
    assert found == [(10, 14, 2, 1), (15, 19, 1, 1), (20, 24, 1, 0), (25, 29, 2, 1)]
    assert [each.accuracy for each in found] == [0.5, 1, 0, 0.5]


def test_an_empty_bin_has_no_accuracy():
    assert [each.accuracy for each in stats.accuracy_by_length([0, 8], [True, True], 3)] == [1, None, 1]


def test_responses_nobody_counted_are_shown_apart():
    assert stats.accuracy_by_length([None, 3, None], [True, True, False], 2) == [(3, 3, 1, 1), (None, None, 2, 1)]
    assert stats.accuracy_by_length([None], [True]) == [(None, None, 1, 1)]
    assert stats.accuracy_by_length([], []) == []


@given(responses, st.integers(1, 12))
def test_every_response_is_in_the_one_bin_that_fits(rows, num_bins):
    tokens, right = [count for count, _ in rows], [verdict for _, verdict in rows]
    found = stats.accuracy_by_length(tokens, right, num_bins)
    counted = [each for each in found if each.low is not None]
    assert sum(each.responses for each in found) == len(rows)
    assert len(counted) <= num_bins
    for each in counted:
        inside = [verdict for count, verdict in rows if count is not None and each.low <= count <= each.high]
        assert (each.responses, each.right) == (len(inside), sum(inside))
    assert all(one.high + 1 == two.low for one, two in pairwise(counted))


@pytest.mark.parametrize(("tokens", "right", "bins"), [([1], [], 2), ([1], [True], 0), ([-1, 2], [True, True], 2)])
def test_lengths_that_cannot_be_are_refused(tokens, right, bins):
    with pytest.raises(ValueError, match=r"lengths|length of -1"):
        stats.accuracy_by_length(tokens, right, bins)


@pytest.mark.parametrize(("outcomes", "ends"), [([], []), (["right"], [])])
def test_rates_of_nothing_are_refused(outcomes, ends):
    with pytest.raises(ValueError, match="an end for each response"):
        stats.response_rates(outcomes, ends)
