"""The curves of a run as the page draws them: at most `MAX_POINTS` points each, over four x-axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Row = Mapping[str, Any]

MAX_POINTS = 1000
SMOOTHING_STEPS = 20
"""The bold curve is an exponential mean over about so many steps, and over a twentieth of a short run."""
AXES = ("step", "updates", "tokens", "hours")
"""Steps; optimizer updates; tokens generated so far; hours in steps so far."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn together."""

    title: str
    keys: tuple[str, ...]
    unit: str = ""
    stage: bool = False
    """Whether these are shares of the step's time."""


CHARTS = (
    Chart("Response length", ("rollout/response_length_mean",), "tokens"),
    Chart("Reward", ("reward/mean",)),
    Chart("Accuracy in training", ("rollout/accuracy", "rollout/accuracy_kept")),
    Chart("Entropy", ("update/entropy",), "nats"),
    Chart("Mean probability of the sampled tokens", ("rollout/probability_mean",)),
    Chart("Groups kept and problems drawn", ("rollout/kept_groups", "rollout/drawn_problems")),
    Chart("Tokens sampled per kept group", ("rollout/tokens_per_kept_group",), "tokens"),
    Chart("Shares of the responses", ("rollout/truncated_fraction", "rollout/no_answer_fraction")),
    Chart(
        "Right and wrong responses",
        ("rollout/right_response_length_mean", "rollout/wrong_response_length_mean"),
        "tokens",
    ),
    Chart(
        "Different answers and right responses per group",
        ("rollout/distinct_answers_mean", "rollout/distinct_right_responses_mean"),
    ),
    Chart("Clipped tokens", ("update/clip_fraction_low", "update/clip_fraction_high"), "share"),
    Chart(
        "Probability of tokens clipped high",
        ("update/clipped_high_probability_mean", "update/clipped_high_probability_max"),
    ),
    Chart("Gradient norm", ("update/grad_norm",)),
    Chart("Old and new policy", ("update/kl_old_new",), "nats"),
    Chart("Engine and trainer", ("rollout/logprob_mismatch_mean", "sync/probe_mean"), "nats"),
    Chart("Seconds of a step", ("time/step", "time/generate", "time/update"), "s"),
    Chart("Tokens per second while generating", ("perf/generated_tokens_per_second",)),
    Chart("Memory of the main process", ("perf/peak_memory_bytes",), "bytes"),
)


def axes_of(rows: Sequence[Row]) -> dict[str, list[float]]:
    """The x of every row on each axis; a row without updates or tokens adds none."""
    updates = accumulate(rows, lambda before, row: row.get("updates", before), initial=0.0)
    tokens = accumulate((row.get("rollout/response_tokens") or 0 for row in rows), initial=0)
    hours = accumulate(((row.get("time/step") or 0.0) / 3600 for row in rows), initial=0.0)
    return {
        "step": [float(row["step"]) for row in rows],
        "updates": list(updates)[1:],
        "tokens": list(tokens)[1:],
        "hours": list(hours)[1:],
    }


def curves(rows: Sequence[Row], keys: Sequence[str]) -> dict[str, Any]:
    """The points of each metric there is: x on each axis, mean, lowest and highest of the steps in a bin, and smoothed.

    With at most `MAX_POINTS` steps a bin is a step. Every number has six digits.
    """
    axes, bins = axes_of(rows), _bins(len(rows))
    found: dict[str, Any] = {}
    for key in keys:
        values = [row.get(key) for row in rows]
        if not any(value is not None for value in values):
            continue
        smooth = smoothed(values)
        points = [_point(values, smooth, first, last) for first, last in bins]
        kept = [number for number, point in enumerate(points) if point is not None]
        found[key] = {
            "at": kept,
            "mean": [points[n][0] for n in kept],  # type: ignore[index]
            "low": [points[n][1] for n in kept],  # type: ignore[index]
            "high": [points[n][2] for n in kept],  # type: ignore[index]
            "smooth": [points[n][3] for n in kept],  # type: ignore[index]
        }
    return {
        "axes": {name: [_short(values[last - 1]) for _, last in bins] for name, values in axes.items()},
        "curves": found,
        "steps_per_point": max((last - first for first, last in bins), default=1),
    }


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Exponential mean, corrected for its start; where there is no value it stays as it was."""
    span = min(SMOOTHING_STEPS, max(len(values) / 20, 1.0))
    keep = math.exp(-1.0 / span)
    total = weight = 0.0
    result: list[float | None] = []
    for value in values:
        if value is not None:
            total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        result.append(total / weight if weight else None)
    return result


def _bins(count: int) -> list[tuple[int, int]]:
    size = max(1, math.ceil(count / MAX_POINTS))
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _point(
    values: Sequence[float | None], smooth: Sequence[float | None], first: int, last: int
) -> tuple[float, float, float, float] | None:
    there = [value for value in values[first:last] if value is not None]
    end = smooth[last - 1]
    if not there or end is None:
        return None
    return _short(sum(there) / len(there)), _short(min(there)), _short(max(there)), _short(end)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
