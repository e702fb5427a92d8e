import pytest

from dapo_cli.algorithm.dynamic_sampling import accepted, pass_rate_histogram


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ((1, -1), range(1, 16)),
        ((1, 15), range(1, 16)),
        ((4, 12), range(4, 13)),
        ((1, 16), range(1, 16)),  # an all-right group is never informative
        ((0, -1), range(1, 16)),  # nor is an all-wrong one
        ((8, 7), range(0)),
    ],
)
def test_accepted_band_of_sixteen(band, expected):
    assert [k for k in range(17) if accepted(k, 16, *band)] == list(expected)


@pytest.mark.parametrize("num_correct", [0, 1])
@pytest.mark.parametrize("max_correct", [-1, 1])
def test_group_of_one_is_never_informative(num_correct, max_correct):
    assert not accepted(num_correct, 1, 1, max_correct)


def test_histogram_counts_every_drawn_group():
    assert pass_rate_histogram([0, 4, 1, 0], group_size=4).tolist() == [2, 1, 0, 0, 1]
    assert pass_rate_histogram([], group_size=2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("count", [-1, 5])
def test_histogram_refuses_impossible_counts(count):
    with pytest.raises(ValueError, match=r"must lie in 0\.\.4"):
        pass_rate_histogram([1, count], group_size=4)
