"""Where a step's time goes on the toy task: generate, forward, backward, and everything else.

    python benchmarks/profile_toy_step.py [--steps 10] [--recipe demo]

Prints one line per kind of work with its share of the steps' wall-clock time. The aim is at most 15% outside generate,
forward and backward. Needs prepared data (`dapo prepare-data demo`); writes its run to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dapo_cli import launch
from dapo_cli.policy import forward as policy_forward
from dapo_cli.policy import update as policy_update
from dapo_cli.policy.model import resolve_model
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.run.opening import Start
from dapo_cli.workload import MODEL_CACHE

SECONDS: dict[str, float] = defaultdict(float)


def timed(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with its seconds added to `SECONDS[kind]`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            SECONDS[kind] += time.perf_counter() - started

    return wrapper


def install_timers() -> None:
    """Time the engine, the forwards (old log-probs included), the backwards and the optimizer steps."""
    HFEngine._sample_next_batch = timed("generate", HFEngine._sample_next_batch)  # type: ignore[method-assign]
    policy_update.response_logprobs = timed("forward", policy_update.response_logprobs)  # type: ignore[attr-defined]
    policy_forward.response_logprobs = timed("forward", policy_forward.response_logprobs)
    torch.Tensor.backward = timed("backward", torch.Tensor.backward)  # type: ignore[method-assign]
    torch.optim.AdamW.step = timed("optimizer", torch.optim.AdamW.step)  # type: ignore[method-assign]


def main() -> None:
    """Run the steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--recipe", default="demo")
    arguments = parser.parse_args()
    overrides = [f"train.steps={arguments.steps}", "eval.before_training=false", "eval.after_training=false"]
    loaded = load_recipe(arguments.recipe, [*overrides, "eval.every=null", "preflight.problems=0"])
    resolve_model(loaded.recipe.model, MODEL_CACHE)  # making the toy model is not part of a step
    install_timers()
    with tempfile.TemporaryDirectory() as folder:
        start = Start(Path(folder) / "run")
        launch.start_training(loaded, arguments.recipe, start, lambda text: None)
        lines = (start.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    total = sum(json.loads(line)["time/step"] for line in lines)
    SECONDS["everything else"] = total - sum(SECONDS.values())
    for kind, seconds in sorted(SECONDS.items(), key=lambda item: -item[1]):
        print(f"{kind:16} {seconds:8.2f} s {seconds / total:6.1%}")
    outside = SECONDS["optimizer"] + SECONDS["everything else"]
    print(f"outside generate, forward and backward: {outside / total:.1%} of {total:.2f} s in {arguments.steps} steps")


if __name__ == "__main__":
    main()
