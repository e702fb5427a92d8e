"""Dynamic sampling: which groups are trained on, decided on raw correctness and never on the shaped reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def accepted(num_correct: int, group_size: int, min_correct: int, max_correct: int) -> bool:
    """Whether a group is trained on (paper, equation 11, with a band that the recipe may narrow).

    A group is informative when some but not all of its answers are right; only such groups are ever accepted, and
    `min_correct..max_correct` narrows them. `max_correct` -1 stands for `group_size - 1`. A group of one is never
    informative (the public code kept it: its advantage there is the reward itself).

    >>> [accepted(k, 4, min_correct=1, max_correct=-1) for k in range(5)]
    [False, True, True, True, False]
    """
    highest_informative = group_size - 1
    highest = highest_informative if max_correct == -1 else min(max_correct, highest_informative)
    return max(min_correct, 1) <= num_correct <= highest


def pass_rate_histogram(num_correct: Sequence[int], group_size: int) -> npt.NDArray[np.int64]:  # [G + 1]
    """Of the drawn groups, how many had 0, 1, ..., G right answers.

    Raises:
        ValueError: a count is below 0 or above `group_size`.

    >>> pass_rate_histogram([0, 0, 2, 4], group_size=4).tolist()
    [2, 0, 1, 0, 1]
    """
    counts = np.asarray(num_correct, dtype=np.int64)
    if np.any((counts < 0) | (counts > group_size)):
        raise ValueError(f"pass rate histogram: right answers must lie in 0..{group_size}, got {list(num_correct)}")
    return np.bincount(counts, minlength=group_size + 1).astype(np.int64)


def pass_rates_in_words(num_correct: Sequence[int], group_size: int) -> str:
    """The histogram for a person: right answers of the group's size, and how many groups had them.

    >>> pass_rates_in_words([0, 0, 2, 4], group_size=4)
    '0/4: 2, 2/4: 1, 4/4: 1'
    """
    counts = pass_rate_histogram(num_correct, group_size).tolist()
    return ", ".join(f"{right}/{group_size}: {count}" for right, count in enumerate(counts) if count)
