"""avg@n and unbiased pass@k of P problems, each with its own number of samples. Pure mathematics.

`num_correct` is [P], the right answers of each problem; `num_samples` is how many samples it had, one number for all
problems or [P]. Problems weigh the same whatever their samples, as in the paper's avg@32.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Counts: TypeAlias = npt.NDArray[np.integer[Any]]
"""Right answers by problem, [P]."""
Samples: TypeAlias = int | npt.NDArray[np.integer[Any]]
"""Samples of every problem, or by problem, [P]."""


def avg_at_n(num_correct: Counts, num_samples: Samples) -> float:
    """Mean over samples, then over problems.

    Raises:
        ValueError: no problems, no samples, a count outside [0, num_samples], or arrays of different lengths.

    >>> avg_at_n(np.array([1, 4]), 4)
    0.625
    >>> avg_at_n(np.array([1, 4]), np.array([2, 4]))
    0.75
    """
    return float(rates(num_correct, num_samples).mean())


def pass_at_k(num_correct: Counts, num_samples: Samples, k: int) -> float:
    """Unbiased chance that at least one of k samples is right: mean of 1 - C(n - c, k) / C(n, k) (Chen et al. 2021).

    Raises:
        ValueError: k outside [1, samples of the problem that has fewest], or counts that `avg_at_n` refuses.

    >>> pass_at_k(np.array([1]), 4, 2)
    0.5
    """
    rates(num_correct, num_samples)
    samples = samples_by_problem(num_correct, num_samples)
    if not 1 <= k <= samples.min():
        raise ValueError(f"pass@k: k must be between 1 and the {samples.min()} samples, got {k}")
    pairs = zip(num_correct.tolist(), samples.tolist(), strict=True)
    return math.fsum(1 - math.comb(n - c, k) / math.comb(n, k) for c, n in pairs) / len(num_correct)


def rates(num_correct: Counts, num_samples: Samples) -> npt.NDArray[np.float64]:
    """Share of right answers of each problem, [P].

    Raises:
        ValueError: as `avg_at_n`.
    """
    samples = samples_by_problem(num_correct, num_samples)
    if len(num_correct) == 0 or samples.min() < 1:
        raise ValueError(f"a score needs problems and samples, got {len(num_correct)} problems x {num_samples} samples")
    if num_correct.min() < 0 or (num_correct > samples).any():
        raise ValueError(f"right answers of a problem must be between 0 and {num_samples}, got {num_correct.tolist()}")
    shares: npt.NDArray[np.float64] = num_correct / samples
    return shares


def samples_by_problem(num_correct: Counts, num_samples: Samples) -> npt.NDArray[np.int64]:
    """Samples of each problem, [P].

    Raises:
        ValueError: `num_samples` is an array of another length.
    """
    samples = np.asarray(num_samples, dtype=np.int64)
    if samples.ndim and samples.shape != num_correct.shape:
        raise ValueError(f"{len(num_correct)} problems have counts of right answers, {samples.size} of samples")
    return np.broadcast_to(samples, num_correct.shape)
