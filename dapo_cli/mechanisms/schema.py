"""The file of one mechanism: what is predicted, on which task, by which metric, and how the two arms differ."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo_cli.recipe.section import PositiveInt, Section

Probability = Annotated[float, Field(gt=0, lt=1)]
Sign = Literal["lower", "higher"]
Value = Literal["share", "accuracy", "over_limit", "length", "entropy", "distinct_right"]


class RareBranch(Section):
    """Sums of two digits: written out, which is rare, they are always right; answered directly, they are guessed."""

    kind: Literal["rare_branch"]
    branch_probability: Probability = Field(description="Chance that the sum is written out.")


class ManyAnswers(Section):
    """Three digits, of which 100 of 1,000 triples are right; all are equally likely at the start."""

    kind: Literal["many_answers"]


class MixedDifficulty(Section):
    """Problems that are solved, impossible or learnable; all are to repeat a digit."""

    kind: Literal["mixed_difficulty"]
    solved: Probability = Field(description="Share of problems that are solved already.")
    impossible: Probability = Field(description="Share of problems that no response solves.")
    learnable_accuracy: Probability = Field(description="Chance of a right answer to the others at the start.")


class Loops(Section):
    """A digit is to be repeated, with or without a run of filler before it."""

    kind: Literal["loops"]
    loop_probability: Probability = Field(description="Chance that a response begins with filler.")
    leave_probability: Probability = Field(description="Chance, after each token of filler, that it ends.")
    accuracy: Probability = Field(description="Chance of a right answer without filler.")
    loop_accuracy: Probability = Field(description="Chance of a right answer after filler.")


Task = Annotated[RareBranch | ManyAnswers | MixedDifficulty | Loops, Field(discriminator="kind")]


class Metric(Section):
    """One number of a run: when a value reaches a level, or what it is after a step."""

    value: Value = Field(
        description="share (probability of what the task marks), accuracy, over_limit (share of responses longer than "
        "the limit), length (tokens), entropy (nats per token), distinct_right (per problem)."
    )
    until: float | None = Field(default=None, description="Count updates and tokens until the value is this high.")
    at_step: PositiveInt | None = Field(default=None, description="The value after this step; null: after the last.")
    spread: bool = Field(
        default=False, description="Compare distances from the median of the arm, so how far seeds lie apart."
    )


class Prediction(Section):
    """A further metric, reported beside the first one and not part of the verdict."""

    metric: Metric
    sign: Sign = Field(description="Of treatment minus baseline at equal updates.")


class Measure(Section):
    """Responses sampled for measuring alone, with a limit twice that of training; they count as no tokens."""

    every: PositiveInt = Field(description="Steps between two measurements.")
    problems: PositiveInt = Field(description="How many problems are asked.")
    samples: PositiveInt = Field(description="Responses to each.")


class Mechanism(Section):
    """One experiment."""

    technique: str = Field(description="The technique as the paper calls it.")
    paper: str = Field(description="Where the paper describes it.")
    prediction: str = Field(description="What is predicted, in words.")
    metric: Metric
    sign: Sign = Field(description="Predicted sign of treatment minus baseline at equal updates.")
    sign_at_tokens: Sign | None = Field(
        default=None, description="The same at equal generated tokens; null: nothing is predicted."
    )
    also: tuple[Prediction, ...] = Field(default=(), description="Further predictions.")
    seeds: int = Field(default=8, ge=2, description="Pairs of runs; three can never be significant.")
    task: Task
    measure: Measure | None = Field(default=None, description="Needed for every value but share.")
    extends: str = Field(description="The recipe that both arms extend.")
    recipe: dict[str, Any] = Field(default={}, description="Sections of the recipe for both arms.")
    baseline: dict[str, Any] = Field(description="Sections of the recipe without the technique.")
    treatment: dict[str, Any] = Field(description="Sections of the recipe with it.")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metric of the verdict, then the others."""
        return (self.metric, *(prediction.metric for prediction in self.also))
