"""One response while it is sampled, and what the scorer makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dapo_cli.recipe.schema import Reward
from dapo_cli.recipe.scorers import READS, scorer_names
from dapo_cli.reward.explain import Explanation, explain
from dapo_cli.rollout.prompts import RenderedPrompt
from dapo_cli.rollout.streaming import TextStream
from dapo_cli.types import FinishReason

Ending = FinishReason | Literal["interrupted"]


@dataclass(slots=True, eq=False)
class LiveResponse:
    """A response that grows; times are seconds since sampling began."""

    prompt: RenderedPrompt
    sample: int
    seed: int
    stream: TextStream
    finish_reason: FinishReason | None = None
    """None while it is sampled."""
    first_token_at: float | None = None
    last_token_at: float = 0.0
    _unread: list[str] = field(default_factory=list)

    def add(self, ids: Sequence[int], finish_reason: FinishReason | None, at: float) -> None:
        """Take new tokens that came at time `at`."""
        if ids and self.first_token_at is None:
            self.first_token_at = at
        self.last_token_at = at
        self._unread.append(self.stream.push(ids))
        self.finish_reason = finish_reason
        if finish_reason is not None:
            self._unread.append(self.stream.end())

    def take_text(self) -> str:
        """The text that came since the last call."""
        text = "".join(self._unread)
        self._unread.clear()
        return text

    @property
    def gold(self) -> str | None:
        """The right answer, where it is known."""
        return self.prompt.problem.ground_truth or None

    @property
    def tokens(self) -> int:
        """Tokens sampled so far, the stop token included."""
        return len(self.stream.ids)

    @property
    def ending(self) -> Ending:
        """Why there are no more tokens."""
        return self.finish_reason or "interrupted"

    @property
    def seconds(self) -> float:
        """From the first token to the last."""
        return 0.0 if self.first_token_at is None else self.last_token_at - self.first_token_at

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first, which also waits for the prompt; None of fewer than two."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Judged:
    """What the scorer found in a response."""

    explanation: Explanation | None
    """Of the scorer that decided; None where it could not be asked without the right answer."""
    gold: str | None

    @property
    def outcome(self) -> str | None:
        """None where the right answer is not known."""
        return self.explanation.verdict.outcome if self.explanation is not None and self.gold is not None else None

    @property
    def prediction(self) -> str | None:
        """The extracted answer."""
        return None if self.explanation is None else self.explanation.verdict.prediction


def judge(response: LiveResponse, reward: Reward) -> Judged:
    """Extract the answer of a response and, where the right one is known, compare.

    Raises:
        UsageError: a scorer cannot be loaded.
    """
    if response.gold is None and any(name not in READS for name in scorer_names(reward.scorer)):
        return Judged(None, None)
    # Whatever training does about a failed verdict, it is shown. Extraction does not depend on the right answer.
    shown = reward.model_copy(update={"on_verifier_error": "exclude"})
    text = reward.response_prefix + response.stream.text
    return Judged(explain(text, response.gold or "0", shown)[-1], response.gold)


def record(response: LiveResponse, judged: Judged, about: dict[str, Any]) -> dict[str, Any]:
    """One line of an output file; `about` holds what is equal for all responses."""
    problem = response.prompt.problem
    return {
        "problem_id": problem.problem_id,
        "problem": problem.text,
        "prompt": response.prompt.text,
        "gold": response.gold,
        "sample": response.sample,
        "seed": response.seed,
        "response": response.stream.text,
        "response_tokens": response.tokens,
        "finish_reason": response.ending,
        "prediction": judged.prediction,
        "outcome": judged.outcome,
        "first_token_at_seconds": response.first_token_at,
        "seconds": response.seconds,
        **about,
    }
