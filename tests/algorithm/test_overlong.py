import numpy as np
import pytest

from dapo_cli.algorithm.overlong import soft_overlong_punishment


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (1, 0.0),
        (16384, 0.0),  # 20480 - 4096
        (16385, -1 / 4096),
        (18432, -0.5),
        (20480, -1.0),
        (20481, -1.0),  # beyond the limit: the third branch of equation 13
    ],
)
def test_paper_values(tokens, expected):
    assert soft_overlong_punishment(np.array([tokens]), 20480, 4096, 1.0).tolist() == [expected]


def test_factor_scales_the_punishment():
    # (12 - [12, 14, 20, 30]) / 8 = [0, -0.25, -1, below -1], times 0.5.
    lengths = np.array([12, 14, 20, 30], dtype=np.int32)
    assert soft_overlong_punishment(lengths, 20, 8, 0.5).tolist() == [0.0, -0.125, -0.5, -0.5]
    assert lengths.tolist() == [12, 14, 20, 30]


@pytest.mark.parametrize(("buffer_length", "factor"), [(0, 1.0), (8, 0.0)])
def test_off(buffer_length, factor):
    assert soft_overlong_punishment(np.array([1, 20, 30]), 20, buffer_length, factor).tolist() == [0.0, 0.0, 0.0]


def test_unsigned_lengths_do_not_wrap():
    assert soft_overlong_punishment(np.array([18432], dtype=np.uint16), 20480, 4096, 1.0).tolist() == [-0.5]
