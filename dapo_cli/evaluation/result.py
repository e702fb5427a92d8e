"""What was evaluated, and what came out: computed from the samples alone, so a resumed evaluation cannot differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.evaluation import statistics
from dapo_cli.evaluation.samples import SampleRecord
from dapo_cli.types import Sampling


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Everything besides the problems and the reward that decides the result."""

    benchmark: str
    samples: int
    """Responses per problem, the n of avg@n."""
    sampling: Sampling
    seed: int
    model: str
    """Which weights: equal names must mean equal weights, because a killed evaluation is resumed by this name."""
    dataset: str
    dataset_hash: str
    contaminated: bool = False
    """Evaluated problems are in the training data, and the recipe allowed it."""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """One problem's n responses."""

    problem_id: str
    ground_truth: str
    num_correct: int
    truncated: int
    no_answer: int
    verifier_errors: int
    response_tokens: tuple[int | None, ...]
    """None where nobody counted."""
    predictions: tuple[str | None, ...]
    """The extracted answers, by sample; None where there was none."""
    right: tuple[bool, ...]
    """Whether each is right, by sample."""

    @classmethod
    def from_samples(cls, samples: Sequence[SampleRecord]) -> ProblemResult:
        """Count one problem's samples."""
        outcomes = [sample.outcome for sample in samples]
        return cls(
            problem_id=samples[0].problem_id,
            ground_truth=samples[0].ground_truth,
            num_correct=outcomes.count("right"),
            truncated=sum(sample.finish_reason == "length" for sample in samples),
            no_answer=outcomes.count("no_answer"),
            verifier_errors=outcomes.count("verifier_error"),
            response_tokens=tuple(sample.response_tokens for sample in samples),
            predictions=tuple(sample.prediction for sample in samples),
            right=tuple(outcome == "right" for outcome in outcomes),
        )


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The results of all problems, in the order asked, and the settings they were made with."""

    settings: EvaluationSettings
    problems: tuple[ProblemResult, ...]

    @classmethod
    def from_samples(cls, settings: EvaluationSettings, samples: Sequence[SampleRecord]) -> EvaluationResult:
        """Result of samples in order of their problems, `settings.samples` for each."""
        starts = range(0, len(samples), settings.samples)
        groups = (samples[start : start + settings.samples] for start in starts)
        return cls(settings, tuple(ProblemResult.from_samples(group) for group in groups))

    @property
    def num_correct(self) -> npt.NDArray[np.int64]:
        """Right answers of each problem, [P]."""
        return np.array([problem.num_correct for problem in self.problems], dtype=np.int64)

    @property
    def avg_at_n(self) -> float:
        """Mean over samples, then problems; an overlong penalty plays no part."""
        return statistics.avg_at_n(self.num_correct, self.settings.samples)

    def pass_at_k(self, k: int) -> float:
        """Unbiased pass@k; see `statistics.pass_at_k`."""
        return statistics.pass_at_k(self.num_correct, self.settings.samples, k)

    @property
    def predictions(self) -> list[tuple[str | None, ...]]:
        """Extracted answers, [P][n]."""
        return [problem.predictions for problem in self.problems]

    @property
    def right(self) -> list[tuple[bool, ...]]:
        """Whether each answer is right, [P][n]."""
        return [problem.right for problem in self.problems]

    def maj_at_k(self, k: int) -> statistics.MajorityScore:
        """Expected maj@k; see `statistics.majority_at_k`."""
        return statistics.majority_at_k(self.predictions, self.right, k)

    @property
    def interval_over_samples(self) -> statistics.Interval:
        """95% interval of avg@n on these fixed problems."""
        return statistics.interval_over_samples(self.num_correct, self.settings.samples)

    @property
    def interval_over_problems(self) -> statistics.Interval:
        """95% interval of avg@n for problems like these."""
        return statistics.interval_over_problems(self.num_correct, self.settings.samples)

    @property
    def truncated_rate(self) -> float:
        """Share of responses that hit the limit."""
        return self._share([problem.truncated for problem in self.problems])

    @property
    def no_answer_rate(self) -> float:
        """Share of responses without an extractable answer."""
        return self._share([problem.no_answer for problem in self.problems])

    @property
    def verifier_error_rate(self) -> float:
        """Share of responses whose scoring failed; they count as not right."""
        return self._share([problem.verifier_errors for problem in self.problems])

    @property
    def response_length_mean(self) -> float | None:
        """Mean response length in tokens; None where nobody counted them."""
        tokens = [count for problem in self.problems for count in problem.response_tokens if count is not None]
        return sum(tokens) / len(tokens) if tokens else None

    def _share(self, counts: list[int]) -> float:
        return sum(counts) / (len(self.problems) * self.settings.samples)

    def to_metrics(self) -> dict[str, float]:
        """`eval/<benchmark>/avg@<n>` and its companions for metrics.jsonl; rates in [0, 1], lengths in tokens."""
        n = self.settings.samples
        on_these, on_alike = self.interval_over_samples, self.interval_over_problems
        values = {
            f"avg@{n}": self.avg_at_n,
            f"avg@{n}_over_samples_low": on_these.low,
            f"avg@{n}_over_samples_high": on_these.high,
            f"avg@{n}_over_problems_low": on_alike.low,
            f"avg@{n}_over_problems_high": on_alike.high,
            f"pass@{n}": self.pass_at_k(n),
            "problems": float(len(self.problems)),
            "truncated": self.truncated_rate,
            "no_answer": self.no_answer_rate,
            "verifier_error": self.verifier_error_rate,
        }
        if self.response_length_mean is not None:
            values["response_length_mean"] = self.response_length_mean
        return {f"eval/{self.settings.benchmark}/{name}": value for name, value in values.items()}


def settings_from_json(values: dict[str, Any]) -> EvaluationSettings:
    """The settings that `dataclasses.asdict` and JSON made `values` of; keys that are not settings are left out."""
    names = EvaluationSettings.__dataclass_fields__
    sampling: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values["sampling"].items()
    }
    kept = {key: value for key, value in values.items() if key in names}
    return EvaluationSettings(**{**kept, "sampling": Sampling(**sampling)})
