"""An endless stream of shuffled problems, whose item n depends on the problems, the seed and n alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import UsageError
from dapo_cli.types import Problem


class ProblemStream:
    """Draws every problem once per epoch, in an order of its own for each epoch.

    With `weights` (dataset -> share) every dataset has epochs of its own, and at any moment each has been drawn as
    often as its share says, to within one problem. The only state is how many problems of each were drawn, so that
    resuming is exact and cheap.

    Raises:
        UsageError: there are no problems, or none of a dataset that has a weight.
    """

    def __init__(
        self, problems: Sequence[Problem], shuffle_seed: int, weights: Mapping[str, float] | None = None
    ) -> None:
        if not problems:
            raise UsageError("dataset: no training problems to draw from")
        self._decks = [
            _Deck([problem for problem in problems if name is None or problem.dataset == name], shuffle_seed, name)
            for name in (weights or [None])
        ]
        shares = np.array(list(weights.values()) if weights else [1.0])
        self._shares: npt.NDArray[np.float64] = shares / shares.sum()  # [datasets]
        contents = "\n".join(f"{problem.problem_id} {problem.ground_truth!r}" for problem in problems)
        given = f"{shuffle_seed}\n{contents}" if weights is None else f"{shuffle_seed}\n{dict(weights)}\n{contents}"
        self._fingerprint = hashlib.sha256(given.encode()).hexdigest()[:16]
        self._problems = len(problems)

    def take(self, count: int) -> list[tuple[int, Problem]]:
        """The next `count` problems with their positions in the stream; positions rise by one for ever."""
        return [(sum(deck.drawn for deck in self._decks), self._next()) for _ in range(count)]

    def _next(self) -> Problem:
        if len(self._decks) == 1:
            return self._decks[0].draw()
        drawn = np.array([deck.drawn for deck in self._decks])
        # The dataset that is furthest behind its share once this problem is counted.
        behind = self._shares * (drawn.sum() + 1) - drawn
        return self._decks[int(behind.argmax())].draw()

    @property
    def epochs(self) -> float:
        """How often the data has been gone through, fractions included; with weights, the largest of the datasets'."""
        return max(deck.drawn / len(deck.problems) for deck in self._decks)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the problems drawn, and a fingerprint of problems, answers, weights and seed."""
        drawn = [deck.drawn for deck in self._decks]
        return {"drawn": sum(drawn), "of_each": drawn, "fingerprint": self._fingerprint, "problems": self._problems}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            UsageError: the state belongs to other problems, weights or another seed.
        """
        if state["fingerprint"] != self._fingerprint:
            raise UsageError(
                f"dataset: the checkpoint drew from {state['problems']} problems (fingerprint {state['fingerprint']}), "
                f"this stream has {self._problems} ({self._fingerprint}); "
                "resume with the data, the weights and dataset.shuffle_seed of the run"
            )
        for deck, drawn in zip(self._decks, state["of_each"], strict=True):
            deck.drawn = int(drawn)


class _Deck:
    """The problems of one dataset, shuffled anew for every epoch."""

    def __init__(self, problems: Sequence[Problem], seed: int, name: str | None) -> None:
        if not problems:
            raise UsageError(f"dataset.parts: {name}: no training problems to draw from")
        self.problems = tuple(problems)
        self.drawn = 0
        self._seed = (seed,) if name is None else (seed, int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)  # [problems]

    def draw(self) -> Problem:
        """The next problem."""
        epoch, place = divmod(self.drawn, len(self.problems))
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((*self._seed, epoch))))
            self._order, self._epoch = generator.permutation(len(self.problems)), epoch
        self.drawn += 1
        return self.problems[int(self._order[place])]
