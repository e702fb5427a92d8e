"""How many processes of which size a recipe comes to on a cluster."""

from __future__ import annotations

from typing import NamedTuple

from dapo_cli.recipe.schema import Recipe


class ClusterShape(NamedTuple):
    """The processes of `backend.kind: ray`."""

    policy_ranks: int
    engine_replicas: int
    gpus_per_rank: int
    """1, or 0 on CPUs."""
    gpus_per_replica: int
    """`rollout.tensor_parallel`, or 0 on CPUs."""
    total_gpus: int


def cluster_shape(recipe: Recipe) -> ClusterShape:
    """Ranks and replicas, with what the recipe leaves null filled in; `combinations.py` refuses what does not fit.

    Colocated: a rank on every GPU and as many replicas as fit beside them. Separate: one of the two is stated, and the
    other gets what is left. On CPUs one of each unless stated.
    """
    backend, size = recipe.backend, recipe.rollout.tensor_parallel
    total = backend.nodes * backend.gpus_per_node
    ranks, replicas = backend.policy_ranks, backend.engine_replicas
    if total == 0:
        return ClusterShape(ranks or 1, replicas or 1, 0, 0, 0)
    if backend.placement == "colocated":
        ranks = ranks or total
        return ClusterShape(ranks, replicas or ranks // size, 1, size, total)
    if ranks is None:
        ranks = total - (replicas or 0) * size
    if replicas is None:
        replicas = (total - ranks) // size
    return ClusterShape(ranks, replicas, 1, size, total)
