"""A run directory with metrics and rollouts that nobody trained."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from tiny import tiny_recipe

from dapo_cli.recipe.dump import to_yaml
from dapo_cli.run.directory import RunDirectory


def row(step: int, **changes: Any) -> dict[str, Any]:
    """A healthy line of metrics.jsonl."""
    chance = random.Random(step)
    values = {
        "step": step,
        "updates": 2 * step,
        "rollout/accuracy": 0.3 + 0.4 * (1 - math.exp(-step / 20)) + chance.uniform(-0.02, 0.02),
        "rollout/informative_fraction": 0.5,
        "rollout/kept_groups": 4,
        "rollout/drawn_problems": 8,
        "rollout/response_length_mean": 20.0 + chance.uniform(-1, 1),
        "rollout/response_tokens": 640,
        "rollout/response_tokens_kept": 320,
        "rollout/truncated_fraction": 0.01,
        "rollout/no_answer_fraction": 0.02,
        "rollout/probability_mean": 0.8,
        "rollout/logprob_mismatch_mean": 1e-7,
        "reward/mean": 0.1,
        "reward/verifier_errors": 0,
        "update/entropy": 0.5 + chance.uniform(-0.02, 0.02),
        "update/clip_fraction_high": 0.005,
        "update/clip_fraction_low": 0.004,
        "update/grad_norm": 0.5,
        "update/skipped_count": 0,
        "time/step": 36.0,
        "time/generate": 18.0,
    }
    return values | changes


def rollout(problem: str, sample: int, outcome: str, **changes: Any) -> dict[str, Any]:
    """A line of a file of rollouts."""
    right = outcome == "right"
    return {
        "problem_id": problem,
        "group": 0,
        "sample": sample,
        "kept": True,
        "prompt": f"What is {problem}?",
        "response": "So it is 7.\nAnswer: 7" if right else "Answer: 8",
        "ground_truth": "7",
        "prediction": None if outcome in ("no_answer", "verifier_error") else "7" if right else "8",
        "outcome": outcome,
        "verifier_error": "out of time" if outcome == "verifier_error" else None,
        "score": 1.0 if right else -1.0,
        "overlong_penalty": 0.0,
        "reward": 1.0 if right else -1.0,
        "tokens": 5,
        "finish_reason": "stop",
        "policy_version": 0,
    } | changes


def make_run(path: Path, rows: list[dict[str, Any]], rollouts: dict[int, list[dict[str, Any]]]) -> RunDirectory:
    """Write them as a run; the first line of metrics is the evaluation before training where it has step 0."""
    manifest = {"model": {"path": "toy"}, "data": {"train": "ab" * 32}, "contaminated": False}
    run = RunDirectory.create(path, to_yaml(tiny_recipe()), manifest)
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in rows))
    run.rollouts.mkdir(exist_ok=True)
    for step, lines in rollouts.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (run.rollouts / f"step_{step}.jsonl").write_text(text, encoding="utf-8")
    return run
