"""Settings of engine, backend and adapters that are fine alone and impossible together. One function per rule."""

from __future__ import annotations

from collections.abc import Iterator

from dapo_cli.recipe.cluster import cluster_shape
from dapo_cli.recipe.contradiction import Problem, Rule
from dapo_cli.recipe.schema import Recipe


def _engine(recipe: Recipe) -> Iterator[Problem]:
    if recipe.backend.kind == "ray" and recipe.rollout.engine == "hf":
        yield Problem(
            ("rollout.engine", "backend.kind"),
            "hf samples from weights in its own process, and on a cluster they are sharded over many",
            "use rollout.engine: vllm, or backend.kind: local",
        )


def _tensor_parallel(recipe: Recipe) -> Iterator[Problem]:
    size, backend = recipe.rollout.tensor_parallel, recipe.backend
    if recipe.rollout.engine == "hf" or size == 1:
        return
    keys = ("rollout.tensor_parallel", "backend.gpus_per_node")
    if backend.kind == "local":
        yield Problem(
            ("rollout.tensor_parallel", "backend.kind"),
            f"the engine of the local backend has one device, not {size}",
            "use 1, or backend.kind: ray",
        )
    elif backend.gpus_per_node == 0:
        yield Problem(keys, f"a replica over {size} GPUs, and gpus_per_node is 0", "use 1 on CPUs")
    elif backend.gpus_per_node % size:
        yield Problem(
            keys,
            f"a replica stays within a node, and {backend.gpus_per_node} GPUs do not divide into replicas of {size}",
            f"use a divisor of {backend.gpus_per_node}",
        )


def _device(recipe: Recipe) -> Iterator[Problem]:
    backend = recipe.backend
    if backend.kind == "ray" and backend.device != "auto" and (backend.device == "cuda") != (backend.gpus_per_node > 0):
        yield Problem(
            ("backend.device", "backend.gpus_per_node"),
            f"device: {backend.device} with gpus_per_node: {backend.gpus_per_node}",
            "on a cluster gpus_per_node decides: use device: auto",
        )


def _ranks_and_replicas(recipe: Recipe) -> Iterator[Problem]:
    backend = recipe.backend
    if backend.kind == "local" or backend.gpus_per_node % recipe.rollout.tensor_parallel:
        return
    keys = ("backend.policy_ranks", "backend.engine_replicas", "backend.nodes", "backend.gpus_per_node")
    shape = cluster_shape(recipe)
    if backend.placement == "separate" and shape.total_gpus and not (backend.policy_ranks or backend.engine_replicas):
        yield Problem(
            (*keys[:2], "backend.placement"),
            "placement: separate does not say how the GPUs are divided",
            "set policy_ranks or engine_replicas",
        )
        return
    for key, count in (
        ("backend.policy_ranks", shape.policy_ranks),
        ("backend.engine_replicas", shape.engine_replicas),
    ):
        if count < 1:
            yield Problem(
                (key, *keys), f"no GPU is left for it: it comes to {count}", "use more GPUs, or divide them anew"
            )
            return
    engines = shape.engine_replicas * shape.gpus_per_replica
    separate = backend.placement == "separate"
    needed = shape.policy_ranks + engines if separate else max(shape.policy_ranks, engines)
    if shape.total_gpus and needed > shape.total_gpus:
        yield Problem(
            keys,
            f"{shape.policy_ranks} policy ranks and {shape.engine_replicas} replicas of {shape.gpus_per_replica} GPUs "
            f"need {needed} GPUs {backend.placement}, and there are {shape.total_gpus}",
            "lower one of them",
        )
    elif not separate and engines > shape.policy_ranks and shape.total_gpus:
        yield Problem(keys, f"colocated engines use the {shape.policy_ranks} GPUs of the policy", "use as many ranks")


def _shard_groups(recipe: Recipe) -> Iterator[Problem]:
    size = recipe.backend.ranks_per_shard_group
    if recipe.backend.kind == "local" or size is None:
        return
    ranks = cluster_shape(recipe).policy_ranks
    if ranks % size:
        yield Problem(
            ("backend.ranks_per_shard_group", "backend.policy_ranks"),
            f"{ranks} policy ranks do not divide into shard groups of {size}",
            f"use a divisor of {ranks}",
        )


def _offload(recipe: Recipe) -> Iterator[Problem]:
    offload = recipe.backend.offload
    if "parameters" in offload and "optimizer" not in offload:
        yield Problem(
            ("backend.offload",),
            "the optimizer works where the parameters are",
            "use [parameters, optimizer], or [optimizer] alone",
        )


def _lora_targets(recipe: Recipe) -> Iterator[Problem]:
    lora = recipe.model.lora
    if lora is not None and not lora.targets:
        yield Problem(
            ("model.lora.targets",), "no layer gets an adapter, so nothing would be trained", "name some layers"
        )


def idle_parts(recipe: Recipe) -> list[str]:
    """Ranks and GPUs that are there and have no work, one sentence each; of a recipe that breaks no rule."""
    backend = recipe.backend
    if backend.kind == "local":
        return []
    shape, notes = cluster_shape(recipe), []
    rollouts = recipe.train.prompts_per_minibatch * recipe.rollout.group_size
    if rollouts < shape.policy_ranks:
        notes.append(
            f"train.prompts_per_minibatch: {rollouts} rollouts per update (prompts_per_minibatch x group_size) leave "
            f"{shape.policy_ranks - rollouts} of {shape.policy_ranks} policy ranks without work"
        )
    engines = shape.engine_replicas * shape.gpus_per_replica
    separate = backend.placement == "separate"
    unused = shape.total_gpus - shape.policy_ranks - (engines if separate else 0)
    if unused > 0:
        notes.append(
            f"backend.gpus_per_node: {unused} of {shape.total_gpus} GPUs are not used by {shape.policy_ranks} policy "
            f"ranks and {shape.engine_replicas} replicas of {shape.gpus_per_replica} GPUs"
        )
    if shape.total_gpus and not separate and engines < shape.policy_ranks:
        notes.append(
            f"backend.engine_replicas: {shape.policy_ranks - engines} of the policy's {shape.policy_ranks} GPUs rest "
            f"while {shape.engine_replicas} replicas of {shape.gpus_per_replica} GPUs sample"
        )
    return notes


CLUSTER_RULES: tuple[Rule, ...] = (
    _lora_targets,
    _engine,
    _tensor_parallel,
    _device,
    _ranks_and_replicas,
    _shard_groups,
    _offload,
)
