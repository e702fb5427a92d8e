"""What a run's metrics say, in words: each finding with its evidence and with what people do about it.

Thresholds are rules of thumb unless a source is named. Medians of windows are compared, so that one noisy step is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from dapo_cli.recipe.schema import Recipe

Row = Mapping[str, Any]
Severity = Literal["good", "watch", "bad"]

LOW_ENTROPY = 0.05
"""Nats; below it nearly every token is certain. The paper's run stays between 0.30 and 0.70 (figure 7c)."""
LOW_INFORMATIVE = 0.1
"""Of the drawn groups: ten problems are drawn for each that is kept."""
HIGH_TRUNCATION = 0.25
HIGH_NO_ANSWER = 0.5
HIGH_CLIP = 0.05
LENGTH_GROWTH = 1.5
MISMATCH_GROWTH = 3.0
MISMATCH_FLOOR = 1e-3
"""Nats; below it growth is rounding."""
LITTLE_PROGRESS = 0.02
MIN_STEPS = 8
"""Fewer say nothing about a trend."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that can be said of a run."""

    kind: str
    title: str
    evidence: str
    advice: str
    first_step: int
    severity: Severity


@dataclass(frozen=True, slots=True)
class Trend:
    """The median of a metric at the beginning and at the end of a run, a quarter of its steps each."""

    first: float
    last: float
    first_step: int
    last_step: int

    def words(self, digits: int = 3) -> str:
        """From what to what, with the steps."""
        places = f"medians around steps {self.first_step} and {self.last_step}"
        return f"{self.first:.{digits}g} to {self.last:.{digits}g} ({places})"


def find(rows: Sequence[Row], recipe: Recipe) -> list[Finding]:
    """All that can be said of the lines of a metrics.jsonl, the worst first; one finding at least."""
    steps = [row for row in rows if row.get("step")]
    found = [finding for rule in _RULES for finding in rule(steps, recipe)]
    if not steps:
        found.append(Finding("empty", "No step has been finished", "metrics.jsonl has no step", "Wait.", 0, "watch"))
    elif not found:
        what = f"{len(steps)} steps without a sign of trouble in entropy, lengths, filter, mismatch or scoring"
        found.append(Finding("nothing", "Nothing unusual", what, "Go on.", int(steps[-1]["step"]), "good"))
    order = ("bad", "watch", "good")
    return sorted(found, key=lambda finding: (order.index(finding.severity), finding.first_step))


def trend(rows: Sequence[Row], key: str) -> Trend | None:
    """The trend of a metric; None with fewer than `MIN_STEPS` values."""
    points = [(int(row["step"]), float(row[key])) for row in rows if row.get(key) is not None]
    if len(points) < MIN_STEPS:
        return None
    quarter = max(len(points) // 4, 2)
    head, tail = points[:quarter], points[-quarter:]
    return Trend(median(value for _, value in head), median(value for _, value in tail), head[-1][0], tail[0][0])


def first_step_where(rows: Sequence[Row], key: str, holds: Callable[[float], bool]) -> int:
    """The first step from which the metric meets the condition three times in a row; 0 for none."""
    run = 0
    for row in rows:
        value = row.get(key)
        run = run + 1 if value is not None and holds(float(value)) else 0
        if run == 3:
            return int(row["step"]) - 2
    return 0


def _entropy(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    key, change = "update/entropy", trend(rows, "update/entropy")
    if change is None:
        return
    if change.last < LOW_ENTROPY:
        yield Finding(
            "entropy_low",
            "Entropy has collapsed",
            f"update/entropy {change.words()}: nearly every token is certain, groups repeat themselves",
            "Raise train.clip_ratio_high, lower the learning rate, or stop here if accuracy is where it should be.",
            first_step_where(rows, key, lambda value: value < LOW_ENTROPY),
            "watch" if _accuracy_is_high(rows) else "bad",
        )
    elif change.first > 0 and change.last > 2 * change.first and change.last > 1.0:
        yield Finding(
            "entropy_rising",
            "Entropy grows without end",
            f"update/entropy {change.words()}",
            "Lower train.clip_ratio_high or the learning rate; look at the rollouts for text that falls apart.",
            first_step_where(rows, key, lambda value: value > 2 * change.first),
            "bad",
        )


def _accuracy_is_high(rows: Sequence[Row]) -> bool:
    change = trend(rows, "rollout/accuracy")
    return change is not None and change.last > 0.8


def _filter(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    key, change = "rollout/informative_fraction", trend(rows, "rollout/informative_fraction")
    if change is not None and change.last < LOW_INFORMATIVE:
        right, wrong = trend(rows, "rollout/all_right_groups"), trend(rows, "rollout/all_wrong_groups")
        easy = right is not None and wrong is not None and right.last > wrong.last
        yield Finding(
            "filter_starving",
            "Few groups teach anything",
            f"{key} {change.words()}: most groups are all {'right' if easy else 'wrong'}",
            "The problems are too easy by now: add harder ones, or stop."
            if easy
            else "The problems are too hard: add "
            "easier ones, raise rollout.group_size, or begin with a stronger model.",
            first_step_where(rows, key, lambda value: value < LOW_INFORMATIVE),
            "watch" if easy else "bad",
        )
    short = [row for row in rows if 0 <= (row.get("rollout/kept_groups") or 0) < recipe.train.prompts_per_step]
    if recipe.dynamic_sampling.enabled and len(short) > len(rows) / 4 and len(rows) >= MIN_STEPS:
        yield Finding(
            "small_steps",
            "Steps are not filled",
            f"{len(short)} of {len(rows)} steps had fewer than {recipe.train.prompts_per_step} informative groups "
            f"within {recipe.dynamic_sampling.max_drawn_problems} problems",
            "Raise dynamic_sampling.max_drawn_problems, or change the problems.",
            int(short[0]["step"]),
            "watch",
        )


def _length(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    length, accuracy = trend(rows, "rollout/response_length_mean"), trend(rows, "rollout/accuracy")
    if length is None or accuracy is None:
        return
    grown = length.last > LENGTH_GROWTH * max(length.first, 1.0)
    if grown and accuracy.last < accuracy.first - LITTLE_PROGRESS:
        yield Finding(
            "length_without_use",
            "Responses grow and accuracy falls",
            f"rollout/response_length_mean {length.words()}; rollout/accuracy {accuracy.words()}",
            "Look at the longest rollouts for repetition; turn on soft overlong punishment; go back to a checkpoint.",
            length.last_step,
            "bad",
        )
    elif length.last < length.first / LENGTH_GROWTH and accuracy.last < accuracy.first - LITTLE_PROGRESS:
        yield Finding(
            "length_collapse",
            "Responses shrink and accuracy falls",
            f"rollout/response_length_mean {length.words()}; rollout/accuracy {accuracy.words()}",
            "A collapse: go back to a checkpoint before it, with a lower learning rate.",
            length.last_step,
            "bad",
        )


def _truncation(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    key, change = "rollout/truncated_fraction", trend(rows, "rollout/truncated_fraction")
    if change is not None and change.last > HIGH_TRUNCATION:
        yield Finding(
            "truncation",
            "Many responses are cut at the limit",
            f"{key} {change.words()}; the limit is {recipe.rollout.max_response_tokens} tokens",
            "Raise rollout.max_response_tokens, or use overlong punishment or filter: cut responses count as wrong.",
            first_step_where(rows, key, lambda value: value > HIGH_TRUNCATION),
            "bad" if change.last > 0.5 else "watch",
        )


def _scoring(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    early = [
        float(row["rollout/no_answer_fraction"]) for row in rows[:MIN_STEPS] if _has(row, "rollout/no_answer_fraction")
    ]
    if len(early) >= 3 and median(early) > HIGH_NO_ANSWER:
        yield Finding(
            "no_answer",
            "The scorer finds no answer at the beginning",
            f"rollout/no_answer_fraction is {median(early):.2f} (median of the first {len(early)} steps)",
            "Prompt and scorer may disagree: dapo reward explain on a response, and look at prompt.template.",
            int(rows[0]["step"]),
            "watch",
        )
    failed = [row for row in rows if (row.get("reward/verifier_errors") or 0) > 0]
    if failed:
        total = sum(int(row["reward/verifier_errors"]) for row in failed)
        yield Finding(
            "verifier_errors",
            "The scorer failed on some responses",
            f"{total} responses without a verdict in {len(failed)} of {len(rows)} steps",
            "dapo samples RUN --outcome verifier_error shows them; reward.on_verifier_error says what becomes of them.",
            int(failed[0]["step"]),
            "bad" if total > len(rows) * 8 else "watch",
        )


def _has(row: Row, key: str) -> bool:
    return row.get(key) is not None


def _numbers(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    change = trend(rows, "rollout/logprob_mismatch_mean")
    if change is not None and change.last > max(MISMATCH_FLOOR, MISMATCH_GROWTH * change.first):
        yield Finding(
            "mismatch",
            "Engine and trainer drift apart",
            f"rollout/logprob_mismatch_mean {change.words()}",
            "Compare precision and kernels of engine and trainer; train on fewer updates per step.",
            first_step_where(
                rows, "rollout/logprob_mismatch_mean", lambda value: value > MISMATCH_GROWTH * change.first
            ),
            "bad",
        )
    skipped = [row for row in rows if (row.get("update/skipped_count") or 0) > 0]
    if skipped:
        total = sum(int(row["update/skipped_count"]) for row in skipped)
        yield Finding(
            "skipped",
            "Updates were skipped",
            f"{total} updates had a loss or gradient that is not finite, in {len(skipped)} steps",
            "Lower the learning rate; look for a step before it with a large grad_norm.",
            int(skipped[0]["step"]),
            "bad",
        )
    for side in ("low", "high"):
        clip = trend(rows, f"update/clip_fraction_{side}")
        if clip is not None and clip.last > HIGH_CLIP:
            yield Finding(
                f"clip_{side}",
                f"Much is clipped ({side})",
                f"update/clip_fraction_{side} {clip.words()}",
                "Updates are too large or too many per step: lower the learning rate, or raise prompts_per_minibatch.",
                clip.last_step,
                "watch",
            )


def _progress(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    accuracy = trend(rows, "rollout/accuracy")
    if accuracy is None:
        return
    gain = accuracy.last - accuracy.first
    if gain > LITTLE_PROGRESS:
        yield Finding(
            "progress", "Accuracy rises", f"rollout/accuracy {accuracy.words()}", "Go on.", accuracy.last_step, "good"
        )
    elif len(rows) >= 5 * MIN_STEPS and accuracy.last < 0.9:
        yield Finding(
            "no_progress",
            "Accuracy does not rise",
            f"rollout/accuracy {accuracy.words()} in {len(rows)} steps",
            "dapo check for the learning rate and its warm-up; look at the informative groups and at the rollouts.",
            accuracy.last_step,
            "watch",
        )


def _evaluations(rows: Sequence[Row], recipe: Recipe) -> Iterator[Finding]:
    scored = [row for row in rows if any(key.startswith("eval/") and "/avg@" in key for key in row)]
    keys = [key for row in scored for key in row if key.startswith("eval/") and "/avg@" in key and "_over_" not in key]
    for key in dict.fromkeys(keys):
        points = [row for row in scored if _has(row, key) and _has(row, f"{key}_over_samples_low")]
        if len(points) < 2:
            continue
        first, last = points[0], points[-1]
        words = f"{key} {first[key]:.3f} at step {first['step']}, {last[key]:.3f} at step {last['step']}"
        if last[f"{key}_over_samples_high"] < first[f"{key}_over_samples_low"]:
            advice = "Training makes the model worse at it: take an earlier checkpoint, and compare data and benchmark."
            yield Finding("eval_down", "The evaluation fell", words, advice, int(last["step"]), "bad")
        elif last[f"{key}_over_samples_low"] > first[f"{key}_over_samples_high"]:
            yield Finding("eval_up", "The evaluation rose", words, "Go on.", int(last["step"]), "good")


_RULES = (_entropy, _filter, _length, _truncation, _scoring, _numbers, _progress, _evaluations)
