"""What the paper's figures show of the 32B run, as far as it can be stated: coarse ranges over the whole run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Band:
    """A range that a metric moved in."""

    metric: str
    low: float
    high: float
    source: str


_OVER = "read off the scale, over some 5,000 steps of Qwen2.5-32B"
BANDS = (
    Band(
        "rollout/response_length_mean", 1000, 4000, f"paper, figure 7a: from about 1,000 to above 4,000 tokens, {_OVER}"
    ),
    Band("reward/mean", -0.8, 0.4, f"paper, figure 7b: rises from -0.8 to 0.4, {_OVER}"),
    Band("update/entropy", 0.30, 0.70, f"paper, figure 7c: 0.30 to 0.70, slowly upward, {_OVER}"),
    Band("rollout/probability_mean", 0.74, 0.86, f"paper, figure 7d: 0.74 to 0.86, {_OVER}"),
)
