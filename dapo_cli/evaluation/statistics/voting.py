"""maj@k: how often the most frequent answer among k samples is right. Pure mathematics.

`predictions` and `correct` hold one row per problem and one entry per sample; rows may differ in length. Answers are
equal if their texts are, and having none (None) is an answer like any other, as `[INVALID]` is in the public code: a
problem whose responses mostly end without an answer is wrong.

Among equally frequent answers the one seen first wins, as in the public code. Over draws in every order that gives tied
answers equal chances, so the expectation does not depend on the order of the samples; `majority_in_order` does. The
verdict of an answer is the verdict of its sample seen first, which matters only where a scorer judges equal texts
differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Predictions: TypeAlias = Sequence[Sequence[str | None]]
Verdicts: TypeAlias = Sequence[Sequence[bool]]

MAX_EXACT_SAMPLES = 1000
"""C(1000, 500) still fits a float."""
MAX_EXACT_WORK = 128 * 128
"""Largest samples x k of a problem counted exactly: milliseconds, a second if all answers differ and are right."""
SIMULATED_DRAWS = 10_000


class MajorityScore(NamedTuple):
    """maj@k in [0, 1] and how it was found."""

    score: float
    simulated_problems: int
    """0: an exact expectation."""
    stderr: float
    """Standard error of the simulation, 0 where exact; says nothing of the sampling error of the score."""


class MajorityInOrder(NamedTuple):
    """Share of problems whose vote over all samples is right, in [0, 1], and problems whose vote was a tie."""

    score: float
    ties: int


def majority_at_k(predictions: Predictions, correct: Verdicts, k: int, seed: int = 0) -> MajorityScore:
    """Expected maj@k of k samples drawn without replacement: exact, or simulated for problems of very many samples.

    Raises:
        ValueError: no problems, rows of different lengths, or k outside [1, samples of the problem with fewest].

    >>> majority_at_k([["7", "7", "3"]], [[True, True, False]], 3).score
    1.0
    >>> majority_at_k([["7", "7", "3"]], [[True, True, False]], 2).score  # 7,7 wins; each of two 7,3 wins by half
    0.6666666666666666
    """
    check_rows(predictions, correct, k)
    scores, variances = [], []
    for index, (row, verdicts) in enumerate(zip(predictions, correct, strict=True)):
        sizes, shares = _classes(row, verdicts)
        if len(row) <= MAX_EXACT_SAMPLES and len(row) * k <= MAX_EXACT_WORK:
            chances = [
                share * _win_chance(sizes[answer], tuple(sorted(sizes[:answer] + sizes[answer + 1 :])), k)
                for answer, share in enumerate(shares)
                if share
            ]
            scores.append(math.fsum(chances))
        else:
            score, variance = _simulate(sizes, shares, k, np.random.default_rng((seed, index)))
            scores.append(score)
            variances.append(variance)
    return MajorityScore(math.fsum(scores) / len(scores), len(variances), math.sqrt(sum(variances)) / len(scores))


def majority_in_order(predictions: Predictions, correct: Verdicts) -> MajorityInOrder:
    """The vote over all samples in the order given, the first seen winning a tie: published maj@n figures are this.

    Raises:
        ValueError: as `majority_at_k`.

    >>> majority_in_order([["3", "7"], ["7", "7"]], [[False, True], [True, True]])
    MajorityInOrder(score=0.5, ties=1)
    """
    check_rows(predictions, correct, 1)
    right = ties = 0
    for row, verdicts in zip(predictions, correct, strict=True):
        ids = answer_ids(row)
        sizes = np.bincount(ids)
        right += bool(verdicts[int(np.argmax(sizes[ids]))])
        ties += int((sizes == sizes.max()).sum()) > 1
    return MajorityInOrder(right / len(predictions), ties)


def answer_ids(row: Sequence[str | None]) -> npt.NDArray[np.int64]:
    """Number of each sample's answer, [n]; answers are numbered 0, 1, ... as first seen."""
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(answer, len(numbers)) for answer in row], dtype=np.int64)


def check_rows(predictions: Predictions, correct: Verdicts, k: int) -> None:
    """Refuse what cannot be voted on.

    Raises:
        ValueError: no problems, rows of different lengths, or k outside [1, samples of the problem with fewest].
    """
    if not predictions or [len(row) for row in predictions] != [len(row) for row in correct]:
        raise ValueError(f"a vote needs an answer and a verdict per sample, got {len(predictions)} problems")
    fewest = min(len(row) for row in predictions)
    if not 1 <= k <= fewest:
        raise ValueError(f"maj@k: k must be between 1 and the {fewest} samples, got {k}")


def _classes(row: Sequence[str | None], verdicts: Sequence[bool]) -> tuple[list[int], list[float]]:
    """Samples of each answer, and the share of them judged right: the chance that the first one seen is right."""
    ids = answer_ids(row)
    sizes = np.bincount(ids)
    return sizes.tolist(), (np.bincount(ids, weights=np.array(verdicts, dtype=float)) / sizes).tolist()


@lru_cache(maxsize=65536)
def _win_chance(size: int, others: tuple[int, ...], k: int) -> float:
    """Chance that an answer of `size` samples wins the vote of k draws against `others`, tied answers having equal
    chances. Few sizes occur, many times over.

    Sums over the votes m of the winner. The others are counted by a polynomial in x (draws) and y (answers tied at m):
    the coefficient of x^(k-m) y^t in the product of sum_{i<m} C(c, i) x^i + C(c, m) x^m y, times C(size, m) / (t + 1).
    All terms are positive, so floats lose nothing by cancellation.
    """
    draws = math.comb(size + sum(others), k)
    won = 0.0
    for votes in range(1, min(k, size) + 1):
        rest = k - votes
        if rest <= sum(min(other, votes) for other in others):
            ways = _ways_of_the_others(others, votes, rest)  # [ties + 1]
            won += math.comb(size, votes) * float((ways / np.arange(1, len(ways) + 1)).sum())
    return won / draws


def _ways_of_the_others(sizes: tuple[int, ...], votes: int, rest: int) -> npt.NDArray[np.float64]:
    """Ways to draw `rest` samples with at most `votes` of each answer, by how many answers have just that, [T + 1]."""
    ties = rest // votes
    ways = np.zeros((ties + 1, rest + 1))  # [ties, draws]
    ways[0, 0] = 1
    for size in sizes:
        more = np.zeros_like(ways)
        for drawn in range(min(size, votes - 1, rest) + 1):
            more[:, drawn:] += math.comb(size, drawn) * ways[:, : rest + 1 - drawn]
        if size >= votes and ties:
            more[1:, votes:] += math.comb(size, votes) * ways[:-1, : rest + 1 - votes]
        ways = more
    return ways[:, rest]


def _simulate(sizes: list[int], shares: list[float], k: int, rng: np.random.Generator) -> tuple[float, float]:
    """Mean and its variance over `SIMULATED_DRAWS` draws, tied answers sharing a draw equally."""
    values = []
    for _ in range(SIMULATED_DRAWS // 1000):
        drawn = rng.multivariate_hypergeometric(sizes, k, size=1000, method="marginals")  # [1000, answers]
        winners = drawn == drawn.max(axis=1, keepdims=True)
        values.append(winners @ np.array(shares) / winners.sum(axis=1))
    outcome = np.concatenate(values)
    return float(outcome.mean()), float(outcome.var(ddof=1)) / len(outcome)
