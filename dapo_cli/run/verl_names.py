"""The names under which verl logs what our metrics measure, so that charts of both lie over each other.

verl computes its metrics on the groups that are trained on, so ours are taken with `_kept`. A name stands here only
where the values are of the same kind; what differs in detail is said in docs/metrics.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TO_VERL: dict[str, str] = {
    "step": "training/global_step",
    "rollout/epochs": "training/epoch",
    "loss/policy": "actor/pg_loss",
    "update/entropy": "actor/entropy",
    "update/grad_norm": "actor/grad_norm",
    "update/learning_rate": "actor/lr",
    "update/kl_old_new": "actor/ppo_kl",
    "update/clip_fraction_dual": "actor/pg_clipfrac_lower",
    "reward/mean_kept": "critic/rewards/mean",
    "reward/max_kept": "critic/rewards/max",
    "reward/min_kept": "critic/rewards/min",
    "advantage/mean": "critic/advantages/mean",
    "advantage/max": "critic/advantages/max",
    "advantage/min": "critic/advantages/min",
    "rollout/response_length_mean_kept": "response_length/mean",
    "rollout/response_length_max_kept": "response_length/max",
    "rollout/response_length_min_kept": "response_length/min",
    "rollout/truncated_fraction_kept": "response_length/clip_ratio",
    "rollout/prompt_length_mean": "prompt_length/mean",
    "rollout/prompt_length_max": "prompt_length/max",
    "rollout/logprob_mismatch_kl": "rollout_corr/kl",
    "time/step": "timing_s/step",
    "time/generate": "timing_s/gen",
    "time/logprobs": "timing_s/old_log_prob",
    "time/update": "timing_s/update_actor",
    "time/eval": "timing_s/testing",
    "time/checkpoint": "timing_s/save_checkpoint",
}
"""Ours -> verl's."""

OTHERS = "dapo/"
"""Before the names that verl has no counterpart of."""

_SUMS = {"actor/pg_clipfrac": ("update/clip_fraction_low", "update/clip_fraction_high")}
_COPIES = {f"critic/score/{end}": f"reward/{end}_kept" for end in ("mean", "max", "min")}
"""verl's score has the overlong penalty in it, so that it is its reward."""
_SCORE = re.compile(r"eval/(?P<benchmark>[^/]+)/avg@(?P<samples>\d+)")
_VERL_SCORE = re.compile(r"val-core/(?P<benchmark>[^/]+)/acc/mean@(?P<samples>\d+)")


def to_verl(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl under verl's names; what verl does not have keeps its name after `dapo/`.

    >>> to_verl({"update/entropy": 0.5, "eval/aime_2024/avg@32": 0.4, "rollout/accuracy": 0.6})
    {'actor/entropy': 0.5, 'val-core/aime_2024/acc/mean@32': 0.4, 'dapo/rollout/accuracy': 0.6}
    """
    renamed: dict[str, Any] = {}
    for key, value in row.items():
        score = _SCORE.fullmatch(key)
        if score:
            renamed[f"val-core/{score['benchmark']}/acc/mean@{score['samples']}"] = value
        else:
            renamed[TO_VERL.get(key, OTHERS + key)] = value
    for name, parts in _SUMS.items():
        values = [row.get(part) for part in parts]
        if None not in values:
            renamed[name] = sum(values)
    return renamed | {name: row[key] for name, key in _COPIES.items() if key in row}


def from_verl(name: str) -> str | None:
    """Our name of what verl logs as `name`; None where we have none.

    >>> from_verl("actor/entropy"), from_verl("val-core/math_dapo/acc/mean@32"), from_verl("perf/mfu/actor")
    ('update/entropy', 'eval/math_dapo/avg@32', None)
    """
    score = _VERL_SCORE.fullmatch(name)
    if score:
        return f"eval/{score['benchmark']}/avg@{score['samples']}"
    return _FROM_VERL.get(name)


_FROM_VERL = {verl: ours for ours, verl in TO_VERL.items()}
