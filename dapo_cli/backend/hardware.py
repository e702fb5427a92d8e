"""What a recipe asks for, what there is, and what is missing: said before anything starts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.recipe.cluster import cluster_shape
from dapo_cli.recipe.schema import Recipe

CLUSTER_ADDRESS = "RAY_ADDRESS"
_PAGE = "docs/cluster.md says how to start a cluster"


def check_hardware(recipe: Recipe) -> None:
    """Refuse what this machine alone cannot run; with RAY_ADDRESS set, the cluster itself is asked later.

    Raises:
        UsageError: packages, a cluster or GPUs are missing; each is named.
    """
    backend = recipe.backend
    if backend.kind == "ray" and CLUSTER_ADDRESS not in os.environ:
        if backend.nodes > 1:
            raise UsageError(
                f"backend.nodes: {backend.nodes}: {wanted(recipe)} are needed, as a running Ray cluster. "
                f"Missing: {CLUSTER_ADDRESS} is not set, so there is only this machine, with {_this_machine()}",
                hint=f"{_PAGE}; on Slurm, sbatch --nodes={backend.nodes} cluster/dapo.sbatch RECIPE",
            )
        if (have := _visible_gpus()) < backend.gpus_per_node:
            raise UsageError(
                f"backend.gpus_per_node: {backend.gpus_per_node} GPUs are needed, this machine has {_this_machine()}: "
                f"{backend.gpus_per_node - have} are missing",
                hint=f"run it where they are ({_PAGE}), or use a smaller recipe: docs/recipes.md",
            )
    packages = {"ray": backend.kind == "ray", "vllm": recipe.rollout.engine == "vllm"}
    missing = [name for name, needed in packages.items() if needed and importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"this recipe needs the Python packages {' and '.join(missing)}, which are not installed",
            hint="in a checkout (docs/install.md): `make setup-cpu` without a GPU, `pip install -e '.[vllm]'` with one",
        )


def wanted(recipe: Recipe) -> str:
    """The machines of a recipe, in words."""
    shape, backend = cluster_shape(recipe), recipe.backend
    machines = f"{backend.nodes} node{'s' if backend.nodes > 1 else ''}"
    if backend.gpus_per_node:
        machines += f" with {backend.gpus_per_node} GPUs each ({shape.total_gpus} GPUs)"
    return machines


def described(nodes: Sequence[Mapping[str, Any]]) -> str:
    """What a running cluster has, in words; `nodes` is what ray.nodes() says of it."""
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeManagerHostname"]))
    return ", ".join(
        f"{node['NodeManagerHostname']} ({node['Resources'].get('GPU', 0):g} GPUs, "
        f"{node['Resources'].get('CPU', 0):g} CPUs)"
        for node in alive
    )


def check_cluster(recipe: Recipe, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a running cluster that is too small; `nodes` is what ray.nodes() says of it.

    Raises:
        UsageError: names what each node has and how much is missing.
    """
    backend = recipe.backend
    alive = [node for node in nodes if node["Alive"]]
    gpus = {node["NodeManagerHostname"]: int(node["Resources"].get("GPU", 0)) for node in alive}
    fitting = [name for name, have in gpus.items() if have >= backend.gpus_per_node]
    if len(fitting) < backend.nodes:
        found = ", ".join(f"{name} ({have} GPUs)" for name, have in sorted(gpus.items()))
        raise UsageError(
            f"backend.nodes: {wanted(recipe)} are needed; the cluster has {found}: "
            f"{backend.nodes - len(fitting)} such nodes are missing",
            hint=_PAGE,
        )


def _this_machine() -> str:
    return f"{_visible_gpus()} GPUs and {os.cpu_count()} CPU cores"


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count()
