"""Cluster backends on this machine and what local ones are compared with, shared by the tests of the cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
from tiny import fixed_batch
from vllm_tiny import NEEDS_VLLM, TOKENIZER, requests, vllm_recipe

from dapo_cli.backend.local import LocalBackend
from dapo_cli.backend.ray_cluster import RayBackend
from dapo_cli.policy.batch import Batch
from dapo_cli.recipe.schema import Recipe

NEEDS_CLUSTER = [*NEEDS_VLLM, pytest.mark.ray, pytest.mark.timeout(300)]
PROMPTS = [request.prompt_ids for request in requests(2)]
LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}


def cluster_recipe(ranks: int, backend: dict[str, Any] | None = None, **model: Any) -> Recipe:
    """`vllm_recipe` on `ranks` policy ranks and one replica, with packs so small that ranks get unequal numbers."""
    recipe = vllm_recipe(**model)
    section = {"kind": "ray", "policy_ranks": ranks, "engine_replicas": 1, "placement": "separate"} | (backend or {})
    train = recipe.train.model_dump() | {"tokens_per_microbatch": 16}
    return Recipe.model_validate(recipe.model_dump() | {"backend": section, "train": train}, strict=False)


def local_backend(recipe: Recipe, folder: str) -> LocalBackend:
    """The same recipe in this process, with the hf engine."""
    changed = recipe.model_dump()
    changed["backend"] = {}
    changed["rollout"] |= {"engine": "hf"}
    return LocalBackend(Recipe.model_validate(changed, strict=False), folder, TOKENIZER)


@contextmanager
def running(recipe: Recipe, folder: str) -> Iterator[RayBackend]:
    """A cluster backend that leaves no process and no shared memory behind."""
    processes, memory = _engines(), _shared_memory()
    backend = RayBackend(recipe, folder, PROMPTS, len(TOKENIZER), print)
    try:
        yield backend
    finally:
        backend.close()
        assert _engines() <= processes
        _wait_until(lambda: _shared_memory() <= memory)


def _wait_until(holds: Callable[[], bool]) -> None:
    """What other processes of the machine hold for a moment is not ours."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def _engines() -> set[int]:
    return {each.pid for each in psutil.process_iter(["name"]) if "VLLM" in (each.info["name"] or "")}


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("plasma", "ray"))}


def ragged_batch() -> Batch:
    """Rollouts of very unequal length, whose tokens the tiny model knows."""
    batch = fixed_batch(num_groups=3, group_size=3)
    return replace(batch, token_ids=batch.token_ids % len(TOKENIZER))


def close_enough(left: dict[str, float], right: dict[str, float]) -> None:
    """Metrics of the same update on two backends; relative to the gradient's norm where they are gradients."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-5, atol=1e-6, err_msg=name)
