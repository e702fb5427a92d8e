"""An endless stream of shuffled problems, whose item n depends on the seed and n alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import UsageError
from dapo_cli.types import Problem


class ProblemStream:
    """Draws every problem once per epoch, in an order of its own for each epoch.

    The only state is how many problems were drawn, so that resuming is exact and cheap.

    Raises:
        UsageError: there are no problems.
    """

    def __init__(self, problems: Sequence[Problem], shuffle_seed: int) -> None:
        if not problems:
            raise UsageError("dataset: no training problems to draw from")
        self._problems = tuple(problems)
        self._seed = shuffle_seed
        self._drawn = 0
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)  # [problems]
        contents = "\n".join(f"{problem.problem_id} {problem.ground_truth!r}" for problem in self._problems)
        self._fingerprint = hashlib.sha256(f"{shuffle_seed}\n{contents}".encode()).hexdigest()[:16]

    def take(self, count: int) -> list[tuple[int, Problem]]:
        """The next `count` problems with their positions in the stream; positions rise by one for ever."""
        taken = [(index, self._at(index)) for index in range(self._drawn, self._drawn + count)]
        self._drawn += count
        return taken

    @property
    def epochs(self) -> float:
        """How often the data has been gone through, fractions included."""
        return self._drawn / len(self._problems)

    def state_dict(self) -> dict[str, int | str]:
        """What a checkpoint keeps: the number of problems drawn, and a fingerprint of problems, answers and seed."""
        return {"drawn": self._drawn, "fingerprint": self._fingerprint, "problems": len(self._problems)}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Continue where `state` was taken.

        Raises:
            UsageError: the state belongs to other problems or another seed.
        """
        if state["fingerprint"] != self._fingerprint:
            raise UsageError(
                f"dataset: the checkpoint drew from {state['problems']} problems (fingerprint {state['fingerprint']}), "
                f"this stream has {len(self._problems)} ({self._fingerprint}); "
                "resume with the data and dataset.shuffle_seed of the run"
            )
        self._drawn = int(state["drawn"])

    def _at(self, index: int) -> Problem:
        epoch, place = divmod(index, len(self._problems))
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((self._seed, epoch))))
            self._order, self._epoch = generator.permutation(len(self._problems)), epoch
        return self._problems[int(self._order[place])]
