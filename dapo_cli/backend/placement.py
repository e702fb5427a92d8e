"""Which process runs where: a Ray placement group for the whole run, policy ranks and vLLM replicas inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dapo_cli.backend.engine_replica import EngineReplica
from dapo_cli.backend.policy_rank import Place, PolicyRank
from dapo_cli.errors import DapoError
from dapo_cli.recipe.cluster import ClusterShape
from dapo_cli.recipe.schema import Recipe

_PLACEMENT_SECONDS = 120.0
# Beyond the rollouts in flight: calls that must get through while they run.
_EXTRA_CALLS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The processes of a run."""

    group: Any
    ranks: tuple[Any, ...]
    """Actors of the policy ranks, neighbours on one node."""
    engines: tuple[Any, ...]
    """Actors of the vLLM replicas."""


def bundles(recipe: Recipe, shape: ClusterShape) -> list[dict[str, float]]:
    """What is reserved: one bundle per policy rank, then one per replica that has resources of its own.

    Colocated replicas on GPUs have none: they use the GPUs of the ranks, which rest meanwhile.
    """
    rank = {"CPU": 1.0} | ({"GPU": 1.0} if recipe.backend.gpus_per_node else {})
    replica = {"CPU": 1.0} | ({"GPU": float(shape.gpus_per_replica)} if recipe.backend.gpus_per_node else {})
    replicas = 0 if _shares_gpus(recipe) else shape.engine_replicas
    return [rank] * shape.policy_ranks + [replica] * replicas


def place_processes(recipe: Recipe, resolved_model: str, shape: ClusterShape) -> Placed:
    """Reserve the resources and make the actors; nothing is loaded yet.

    Raises:
        DapoError: the cluster has no room for them now.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    wanted = bundles(recipe, shape)
    group = placement_group(wanted, strategy="PACK")
    if not group.wait(_PLACEMENT_SECONDS):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise DapoError(
            f"backend: no room for {shape.policy_ranks} policy ranks and {shape.engine_replicas} vLLM replicas "
            f"({len(wanted)} reservations of {wanted[0]} and {wanted[-1]}); free on the cluster: {free}",
            hint="something else runs there, or backend.nodes and gpus_per_node do not describe it",
        )
    ranks = [
        ray.remote(PolicyRank).options(**_in_bundle(group, index, wanted[index])).remote(recipe, resolved_model)
        for index in range(shape.policy_ranks)
    ]
    places = ray.get([rank.place.remote() for rank in ranks])
    order = sorted(range(len(ranks)), key=lambda index: places[index])
    ranks, places = [ranks[index] for index in order], [places[index] for index in order]
    return Placed(group, tuple(ranks), _engines(recipe, resolved_model, shape, group, places))


def _engines(
    recipe: Recipe, resolved_model: str, shape: ClusterShape, group: Any, places: Sequence[Place]
) -> tuple[Any, ...]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    wanted = bundles(recipe, shape)
    engines = []
    for replica in range(shape.engine_replicas):
        if _shares_gpus(recipe):
            mine = places[replica * shape.gpus_per_replica : (replica + 1) * shape.gpus_per_replica]
            if len({place.node_id for place in mine}) > 1:
                raise DapoError(
                    f"backend.policy_ranks: vLLM replica {replica} would be spread over two nodes: "
                    f"{sorted({place.node_ip for place in mine})}",
                    hint="ranks on all GPUs of every node (policy_ranks: null), or placement: separate",
                )
            affinity = NodeAffinitySchedulingStrategy(mine[0].node_id, soft=False)
            options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": affinity}
            gpus: tuple[int, ...] | None = tuple(place.gpu for place in mine)
        else:
            index = shape.policy_ranks + replica
            options, gpus = _in_bundle(group, index, wanted[index]), None
        calls = recipe.rollout.max_concurrent_rollouts + recipe.dynamic_sampling.max_drawn_problems + _EXTRA_CALLS
        actor = ray.remote(EngineReplica).options(max_concurrency=calls, **options)
        engines.append(actor.remote(recipe, resolved_model, gpus))
    return tuple(engines)


def _in_bundle(group: Any, index: int, resources: dict[str, float]) -> dict[str, Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    return {
        "num_cpus": resources["CPU"],
        "num_gpus": resources.get("GPU", 0),
        "scheduling_strategy": strategy,
    }


def _shares_gpus(recipe: Recipe) -> bool:
    return recipe.backend.placement == "colocated" and recipe.backend.gpus_per_node > 0
