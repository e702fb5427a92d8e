"""What the stages hand to one another: plain values and numpy arrays, picklable, no torch.

A problem becomes a request (prompt ids, sampling, one seed per rollout), an engine turns it into a group of
rollouts, and scoring fills each rollout's verdict and overlong penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Message = dict[str, str]
FinishReason = Literal["stop", "length"]
Outcome = Literal["right", "wrong", "no_answer", "verifier_error"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of a dataset.

    >>> Problem("9f2c", "3 + 4?", ({"role": "user", "content": "3 + 4?"},), "7", "toy_sums").ground_truth
    '7'
    """

    problem_id: str
    """Hash of the normalised problem text; equal ids are the same problem."""
    text: str
    """The problem alone, without the prompt template."""
    messages: tuple[Message, ...]
    """The conversation shown to the model: the problem inside the prompt template."""
    ground_truth: str
    data_source: str
    dataset: str = ""
    """Name of the dataset it comes from; metrics are given for each where there are several."""
    scorer: tuple[str, ...] | None = None
    """Scorers of its dataset, in the order they are asked; None: those of `reward.scorer`."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Every field that decides how a response is sampled. Engines take nothing from a checkpoint's defaults."""

    max_response_tokens: int
    temperature: float
    top_p: float
    top_k: int
    """0: no limit."""
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop_token_ids: tuple[int, ...]
    """A response ends at, and includes, the first of these."""
    stop_strings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RolloutRequest:
    """One problem to sample `len(seeds)` responses for."""

    index: int
    """Position in the stream of drawn problems; groups come back in the order of submission."""
    problem: Problem
    prompt_ids: npt.NDArray[np.int32]  # [prompt tokens]
    sampling: Sampling
    seeds: tuple[int, ...]
    """One 64-bit seed per rollout: the same seed and weights give the same response whatever else is sampled."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the scorer said about one response."""

    score: float
    """+1 right, -1 otherwise (paper, equation 7); a scorer of the user's own may give others; no length term."""
    outcome: Outcome
    """verifier_error: there is no verdict, and a rollout without one is not trained on."""
    prediction: str | None
    """The extracted and normalised answer; None when there was none."""
    error: str | None = None
    """Why the scorer gave no verdict; kept where `reward.on_verifier_error` then calls the answer wrong."""

    @property
    def failed(self) -> bool:
        """Whether the scorer itself failed, whatever the recipe makes of it."""
        return self.outcome == "verifier_error" or self.error is not None


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sampled response; `verdict` is None until it is scored."""

    response_ids: npt.NDArray[np.int32]  # [response tokens], the stop token included
    rollout_logprobs: npt.NDArray[np.float32]  # [response tokens], of the distribution that was sampled from
    response: str
    """The text without the stop token."""
    finish_reason: FinishReason
    policy_version: int
    """Version of the weights that sampled it."""
    verdict: Verdict | None = None
    overlong_penalty: float = 0.0
    """Soft overlong punishment (paper, equation 13), at most 0."""

    @property
    def correct(self) -> bool:
        """Whether the answer is right, before any length penalty."""
        return self.scored.outcome == "right"

    @property
    def scored(self) -> Verdict:
        """The verdict of a scored rollout.

        Raises:
            ValueError: the rollout has not been scored.
        """
        if self.verdict is None:
            raise ValueError("rollout has not been scored")
        return self.verdict

    @property
    def judged(self) -> bool:
        """Whether there is a verdict to train on."""
        return self.scored.outcome != "verifier_error"

    @property
    def reward(self) -> float:
        """Score plus overlong penalty: what the advantage is computed from."""
        return self.scored.score + self.overlong_penalty


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """The rollouts of one problem."""

    index: int
    problem: Problem
    prompt_ids: npt.NDArray[np.int32]  # [prompt tokens]
    rollouts: tuple[Rollout, ...]

    @property
    def num_correct(self) -> int:
        """How many of the group's answers are right."""
        return sum(rollout.correct for rollout in self.rollouts)

    @property
    def num_judged(self) -> int:
        """How many of the group's rollouts have a verdict to train on."""
        return sum(rollout.judged for rollout in self.rollouts)
