"""How far the engine that sampled and the policy that trains disagree about the same tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def logprob_mismatch(
    old_logprobs: npt.NDArray[np.float32],  # [response tokens], by the policy
    rollout_logprobs: npt.NDArray[np.float32],  # [response tokens], by the engine
) -> dict[str, float]:
    """Mean and largest absolute difference, and the mean of rollout - old, an estimate of KL(engine, policy).

    >>> logprob_mismatch(np.array([-1.0, -2.0], np.float32), np.array([-1.5, -2.0], np.float32))
    {'mean': 0.25, 'max': 0.5, 'kl': -0.25}
    """
    difference = rollout_logprobs.astype(np.float64) - old_logprobs
    return {
        "mean": float(np.abs(difference).mean()),
        "max": float(np.abs(difference).max()),
        "kl": float(difference.mean()),
    }
