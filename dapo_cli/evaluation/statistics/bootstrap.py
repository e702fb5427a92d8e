"""best@k, worst@k and maj@k as verl computes them, for comparison with its logs.

They are no estimates to rely on: drawing with replacement makes best@k smaller than the unbiased `pass_at_k` (1 right
of 32 gives a best@32 of 0.64 where pass@32 is 1).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dapo_cli.evaluation.statistics.voting import Predictions, Verdicts, answer_ids, check_rows

DRAWS, SEED = 1000, 42


class BootstrapScores(NamedTuple):
    """Mean and population standard deviation over the draws, each then averaged over problems, in [0, 1].

    The names are those of verl's `val-core` and `val-aux` metrics: best_mean is `best@k/mean`.
    """

    best_mean: float
    best_std: float
    worst_mean: float
    worst_std: float
    maj_mean: float
    maj_std: float


def bootstrap_at_k(predictions: Predictions, correct: Verdicts, k: int) -> BootstrapScores:
    """verl's bootstrap: 1000 draws of k samples with replacement from numpy's generator of seed 42, per problem.

    The generator is one of its own: the global one, which verl reseeds, is not touched. In a draw the most frequent
    answer wins, the one drawn first among equals, with the verdict of its sample drawn first.

    Raises:
        ValueError: no problems, rows of different lengths, or k outside [1, samples of the problem with fewest].
    """
    check_rows(predictions, correct, k)
    means_and_stds = []
    for row, verdicts in zip(predictions, correct, strict=True):
        drawn = _draws(len(row), k)
        right = np.array(verdicts, dtype=np.int64)[drawn]  # [DRAWS, k]
        outcomes = (right.max(axis=1), right.min(axis=1), _votes(answer_ids(row)[drawn], right))
        means_and_stds.append([value for outcome in outcomes for value in (outcome.mean(), outcome.std())])
    return BootstrapScores(*(float(value) for value in np.mean(means_and_stds, axis=0)))


def _votes(ids: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Verdict of the vote of each draw, [DRAWS]; `ids` numbers the drawn answers, [DRAWS, k]."""
    rows = np.arange(len(ids))[:, None]
    answers = int(ids.max()) + 1
    counts = np.bincount((rows * answers + ids).ravel(), minlength=len(ids) * answers).reshape(len(ids), answers)
    winners = counts[rows, ids].argmax(axis=1)  # the first draw whose answer has the most votes
    return np.take_along_axis(right, winners[:, None], axis=1)[:, 0]


@lru_cache(maxsize=4)
def _draws(num_samples: int, k: int) -> npt.NDArray[np.int64]:
    """Drawn sample numbers, [DRAWS, k]; the same for every problem, because verl seeds anew for each."""
    random = np.random.RandomState(SEED)
    return np.stack([random.choice(num_samples, size=k, replace=True) for _ in range(DRAWS)])
