"""Group-relative advantages: one number per rollout, shared by all its response tokens."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

STD_EPSILON = 1e-6
"""Added to the standard deviation, as in the public code."""


def group_advantages(
    rewards: npt.NDArray[np.float64],  # [P, G]
    normalize: Literal["group_std", "none"],
) -> npt.NDArray[np.float32]:  # [P, G]
    """Advantage of each rollout within its group, computed in float64 (paper, equation 9).

    `group_std`: (reward - mean) / (std + 1e-6), the standard deviation with Bessel's correction as the public code has
    it. `none`: reward - mean (Dr. GRPO). The advantage of a group of one is its reward in both cases, as there is
    nothing to compare it with.

    >>> group_advantages(np.array([[1.0, -1.0]]), "none").tolist()
    [[1.0, -1.0]]
    """
    rewards = rewards.astype(np.float64)
    if rewards.shape[1] == 1:
        return rewards.astype(np.float32)
    advantages: npt.NDArray[np.float64] = rewards - rewards.mean(axis=1, keepdims=True)
    if normalize == "group_std":
        advantages /= rewards.std(axis=1, ddof=1, keepdims=True) + STD_EPSILON
    return advantages.astype(np.float32)
