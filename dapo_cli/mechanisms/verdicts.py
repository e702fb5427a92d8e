"""From the curves of the bench to what they say of each prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from dapo_cli.mechanisms.bench import ArmName, Run
from dapo_cli.mechanisms.curves import crossing, height
from dapo_cli.mechanisms.definition import Definition
from dapo_cli.mechanisms.runs import Curve
from dapo_cli.mechanisms.schema import Metric, Sign
from dapo_cli.mechanisms.statistics import Paired, holm, paired

Axis = Literal["updates", "tokens"]
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Comparison:
    """Treatment against baseline in one metric, at equal updates or at equal generated tokens."""

    metric: str
    """In words."""
    axis: Axis
    predicted: Sign | None
    result: Paired
    never_reached: int
    """Runs of both arms that never reached the level; they count with the end of their curve."""

    @property
    def as_predicted(self) -> bool:
        """Whether the effect has the predicted sign."""
        return self.predicted is not None and (self.result.effect > 0) == (self.predicted == "higher")


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is said of a mechanism."""

    definition: Definition
    comparisons: tuple[Comparison, ...]
    """The first is the one that was predicted above all, at equal updates."""
    control: Paired
    """The A/A control in the same metric."""
    holm_p: float
    seconds: float
    """Of all its runs."""

    @property
    def outcome(self) -> str:
        """confirmed, not confirmed, or contradicted, by the first comparison and its Holm-adjusted p."""
        if self.holm_p >= SIGNIFICANT:
            return "NOT CONFIRMED"
        return "confirmed" if self.comparisons[0].as_predicted else "CONTRADICTED"


def judge(definitions: Sequence[Definition], curves: Mapping[Run, Curve]) -> list[Verdict]:
    """A verdict for each mechanism; p values are adjusted over all of them (Holm)."""
    verdicts = [_verdict(definition, curves) for definition in definitions]
    adjusted = holm([verdict.comparisons[0].result.p for verdict in verdicts])
    return [replace(verdict, holm_p=p) for verdict, p in zip(verdicts, adjusted, strict=True)]


def _verdict(definition: Definition, curves: Mapping[Run, Curve]) -> Verdict:
    own = {run: curve for run, curve in curves.items() if run.name == definition.name}
    mechanism = definition.mechanism
    asked: list[tuple[Metric, Sign, Sign | None]] = [(mechanism.metric, mechanism.sign, mechanism.sign_at_tokens)]
    asked += [(prediction.metric, prediction.sign, None) for prediction in mechanism.also]
    comparisons = []
    for metric, at_updates, at_tokens in asked:
        comparisons.append(_compare(own, metric, "updates", at_updates, "treatment"))
        comparisons.append(_compare(own, metric, "tokens", at_tokens, "treatment"))
    control = _compare(own, mechanism.metric, "updates", None, "control").result
    seconds = sum(curve.seconds for curve in own.values())
    return Verdict(definition, tuple(comparisons), control, 1.0, seconds)


def _compare(
    own: Mapping[Run, Curve], metric: Metric, axis: Axis, predicted: Sign | None, against: ArmName
) -> Comparison:
    by_arm = {(run.arm, run.pair): curve for run, curve in own.items()}
    pairs = sorted({run.pair for run in own})
    values: dict[str, list[float]] = {"baseline": [], against: []}
    never = 0
    for pair in pairs:
        both = by_arm["baseline", pair], by_arm[against, pair]
        for arm, curve in zip(("baseline", against), both, strict=True):
            value, reached = measured(curve, metric, axis, both)
            values[arm].append(value)
            never += not reached
    if metric.spread:
        values = {arm: [abs(value - median(found)) for value in found] for arm, found in values.items()}
    return Comparison(in_words(metric), axis, predicted, paired(values["baseline"], values[against]), never)


def measured(curve: Curve, metric: Metric, axis: Axis, both: Sequence[Curve]) -> tuple[float, bool]:
    """The metric of a run, and whether it was reached; `both` are the runs of its pair.

    A value after a step is that at as many updates, or tokens, as the run of the pair with fewer had behind it then.
    """
    points = curve.points
    if metric.until is not None:
        place = crossing(points, metric.value, metric.until, axis)
        return (float(points[-1][axis]), False) if place is None else (place, True)
    step = metric.at_step or int(points[-1]["step"])
    place = min(height(each.points, axis, "step", step) for each in both)
    return height(points, metric.value, axis, place), True


def in_words(metric: Metric) -> str:
    """What is measured.

    >>> in_words(Metric(value="share", until=0.8, spread=True)), in_words(Metric(value="length", at_step=5))
    ('spread over seeds of: until share is 0.8', 'length after step 5')
    """
    if metric.until is not None:
        words = f"until {metric.value} is {metric.until:g}"
    else:
        words = f"{metric.value} after " + ("the last step" if metric.at_step is None else f"step {metric.at_step}")
    return f"spread over seeds of: {words}" if metric.spread else words
