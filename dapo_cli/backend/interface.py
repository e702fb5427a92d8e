"""The seam between the loop and the machines: the loop drives a `Backend` and holds no tensor code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dapo_cli.policy.batch import Batch
from dapo_cli.types import RolloutGroup, RolloutRequest


class Backend(Protocol):
    """Policy and engine, wherever they run. Exchanges `types.py` objects and CPU arrays only."""

    @property
    def trained_parameters(self) -> int:
        """How many parameters are trained, over all ranks."""
        ...

    def describe(self) -> str:
        """Where it runs, in words."""
        ...

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once and yield their groups as they finish, in the order of submission."""
        ...

    def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Log-probs of every response token under the current policy, [response tokens of the batch]."""
        ...

    def update(self, minibatch: Batch, learning_rate: float) -> dict[str, float]:
        """One optimizer step; returns its metrics. A non-finite gradient changes nothing and is counted."""
        ...

    def sync_weights(self, policy_version: int) -> dict[str, float]:
        """Give the engine the policy's weights and stamp what it samples from now on with `policy_version`.

        Returns metrics under sync/: how far the engine's log-probs of fixed sequences are from the policy's.

        Raises:
            StaleWeights: they are further apart than rounding explains.
        """
        ...

    def save(self, folder: Path) -> Callable[[], None] | None:
        """Write weights, optimizer and random state into `folder`.

        With `checkpoint.asynchronous` the function returned waits for the end of it; until then the policy may go on
        changing.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...
