"""What a step costs beyond vLLM's generation and the policy's forward and backward of the same tokens.

    python benchmarks/step_overhead.py [--steps 12] [--recipe smoke] [--set section.key=value]

Trains on a cluster of this machine and, after each step, on the same processes with the same threads, times the raw
work of that step: vLLM's replicas sampling the step's own requests all at once, and the ranks computing log-probs and
updates of the step's own rollouts with nothing around them. Prints the ratio, and where the rest of a step goes.

The workload is fixed: without dynamic sampling, whose refill samples a few groups after most are done.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapo_cli import launch
from dapo_cli.backend import placement, ray_cluster
from dapo_cli.backend.engine_replica import EngineReplica
from dapo_cli.backend.policy_rank import PolicyRank
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.partition import Share, shares
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.run.opening import Start
from dapo_cli.types import RolloutRequest

WARM_UP_STEPS = 2


class RawReplica(EngineReplica):
    """Samples requests for their own sake."""

    async def raw_generate(self, requests: Sequence[RolloutRequest]) -> float:
        """Seconds for all of them at once; nothing is sent back."""
        import asyncio

        started = time.perf_counter()
        await asyncio.gather(*(self._engine.generate_group(request) for request in requests))
        return time.perf_counter() - started


class RawRank(PolicyRank):
    """Computes shares that are there already."""

    def keep(self, parts: Sequence[Share]) -> None:
        """Take the shares of a step."""
        self.parts = parts

    def raw_train(self, learning_rate: float) -> float:
        """Seconds for log-probs and an update of each share."""
        started = time.perf_counter()
        self.logprobs(self.parts)
        for share in self.parts:
            PolicyRank.update(self, share, learning_rate)
        return time.perf_counter() - started


def main() -> None:
    """Run the steps, each followed by its raw work, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--recipe", default="smoke")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    fixed = ["dynamic_sampling.enabled=false", "checkpoint.every=100000"]
    quiet = ["eval.before_training=false", "eval.after_training=false", "eval.every=null", "preflight.problems=0"]
    loaded = load_recipe(arguments.recipe, [f"train.steps={arguments.steps}", *fixed, *quiet, *arguments.overrides])
    placement.EngineReplica, placement.PolicyRank = RawReplica, RawRank  # type: ignore[misc]
    recorded = record(ray_cluster.RayBackend)
    with tempfile.TemporaryDirectory() as folder:
        start = Start(Path(folder) / "run")
        launch.start_training(loaded, arguments.recipe, start, lambda text: None)
        rows = [line for line in read_rows(start.run_dir / "metrics.jsonl") if line["step"] > WARM_UP_STEPS]
    report(rows, recorded[WARM_UP_STEPS:])


def record(backend: Any) -> list[tuple[float, float]]:
    """Have the raw work of every step timed after it; the list fills with (generate, train) seconds."""
    raw: list[tuple[float, float]] = []
    requests: list[RolloutRequest] = []
    minibatches: list[Batch] = []
    generate, update = backend.generate, backend.update

    def recording_generate(self: Any, asked: Sequence[RolloutRequest]) -> Any:
        requests.extend(asked)
        return generate(self, asked)

    def recording_update(self: Any, minibatch: Batch, learning_rate: float) -> Any:
        minibatches.append(minibatch)
        return update(self, minibatch, learning_rate)

    backend.generate, backend.update = recording_generate, recording_update
    from dapo_cli.run.recorder import Recorder

    step = Recorder.step

    def after_step(self: Any, number: int) -> Any:
        return _then(step(self, number), lambda: time_raw(raw, requests, minibatches))

    Recorder.step = after_step  # type: ignore[method-assign]
    make = backend.__init__

    def remember(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        time_raw.backend = self  # type: ignore[attr-defined]

    backend.__init__ = remember
    return raw


def time_raw(raw: list[tuple[float, float]], requests: list[RolloutRequest], minibatches: list[Batch]) -> None:
    """The raw work of the step that has just ended, on the same actors."""
    import ray

    if not minibatches:
        requests.clear()
        return
    backend: Any = time_raw.backend  # type: ignore[attr-defined]
    engines, ranks = backend._engines.actors, backend._ranks
    mine = [requests[number :: len(engines)] for number in range(len(engines))]
    generated = max(ray.get([engine.raw_generate.remote(part) for engine, part in zip(engines, mine, strict=True)]))
    dealt = [shares(each, len(ranks), backend.recipe.train) for each in minibatches]
    ray.get([rank.keep.remote([parts[number] for parts in dealt]) for number, rank in enumerate(ranks)])
    trained = max(ray.get([rank.raw_train.remote(0.0) for rank in ranks]))
    raw.append((generated, trained))
    requests.clear()
    minibatches.clear()


class _then:
    """A context manager, and something to do after it."""

    def __init__(self, context: Any, after: Any) -> None:
        self._context, self._after = context, after

    def __enter__(self) -> Any:
        return self._context.__enter__()

    def __exit__(self, *failure: Any) -> Any:
        result = self._context.__exit__(*failure)
        if failure[0] is None:
            self._after()
        return result


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl."""
    import json

    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def report(rows: Sequence[dict[str, Any]], raw: Sequence[tuple[float, float]]) -> None:
    """Medians over the steps."""

    def middle(values: Sequence[float]) -> float:
        return statistics.median(values)

    step = middle([row["time/step"] for row in rows])
    generated, trained = (middle(values) for values in zip(*raw, strict=True))
    print(f"{len(rows)} steps, medians in seconds")
    print(f"  whole step                        {step:8.3f}")
    print(f"  raw vLLM generation               {generated:8.3f}")
    print(f"  raw log-probs, forward, backward  {trained:8.3f}")
    print(f"  step / raw                        {step / (generated + trained):8.3f}")
    for stage in ("generate", "logprobs", "update", "sync"):
        print(f"  of the step: {stage:<20} {middle([row[f'time/{stage}'] for row in rows]):8.3f}")
    print(f"  rollouts drawn per step           {middle([row['rollout/drawn_problems'] for row in rows]):8.0f} groups")


if __name__ == "__main__":
    main()
