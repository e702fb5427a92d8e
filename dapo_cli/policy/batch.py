"""One step's rollouts as flat arrays: what is trained on, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dapo_cli.types import RolloutGroup


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B rollouts in order of their groups. Token arrays hold one rollout after the other.

    Two rollouts of one prompt of 2 tokens, with responses of 1 and 2 tokens:
    `token_ids = [p p r | p p r r]`, `prompt_lengths = [2 2]`, `response_lengths = [1 2]`,
    `rollout_logprobs = [l | l l]`.
    """

    token_ids: npt.NDArray[np.int32]  # [prompt and response tokens]
    prompt_lengths: npt.NDArray[np.int32]  # [B]
    response_lengths: npt.NDArray[np.int32]  # [B]
    groups: npt.NDArray[np.int32]  # [B], which prompt of the batch, 0, 0, ..., 1, 1, ...
    advantages: npt.NDArray[np.float32]  # [B]
    in_loss: npt.NDArray[np.bool_]  # [B], False: the rollout carries no loss (overlong filtering)
    rollout_logprobs: npt.NDArray[np.float32]  # [response tokens]
    old_logprobs: npt.NDArray[np.float32] | None = None  # [response tokens]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Prompt plus response tokens of each rollout, [B]."""
        return self.prompt_lengths + self.response_lengths
