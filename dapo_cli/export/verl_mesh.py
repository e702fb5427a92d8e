"""The device mesh of a saved tensor: which rank holds which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo_cli.errors import UsageError

_MESHES = (("fsdp",), ("ddp", "fsdp"))
"""Names of the dimensions that verl gives: sharded over all ranks, or sharded inside groups that are replicas."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks of each replica, in the order of the parts they hold."""

    replicas: tuple[tuple[int, ...], ...]


def mesh_of(state: Mapping[str, Any], where: str) -> Mesh:
    """The mesh that a pickled DeviceMesh describes, whichever torch wrote it.

    Raises:
        UsageError: a mesh for tensor parallelism or of another kind; names its dimensions.
    """
    names = tuple(state.get("_mesh_dim_names") or state.get("mesh_dim_names") or ())
    if names not in _MESHES:
        raise UsageError(
            f"{where}: sharded over the mesh ({', '.join(map(str, names)) or 'without names'}), a layout that is not "
            "read: (fsdp) and (ddp, fsdp) are",
            hint="tensor and sequence parallel weights need verl's own merger"
            if "tp" in names
            else "only verl's FSDP actors are read",
        )
    ranks = _ranks(state)
    if len(names) == 1:
        ranks = [ranks]
    return Mesh(tuple(tuple(int(rank) for rank in replica) for replica in ranks))


def _ranks(state: Mapping[str, Any]) -> Any:
    """Nested lists of ranks, one level for each dimension; `mesh` up to torch 2.8, a layout over a list since."""
    for name in ("mesh", "_mesh"):
        if state.get(name) is not None:
            return state[name].tolist()
    ranks = state["_rank_map"].tolist()
    sizes = _dimensions(state["_layout"].state)
    if len(sizes) == 1:
        (size, stride), *_ = sizes
        return [ranks[index * stride] for index in range(size)]
    (outer, outer_stride), (inner, inner_stride) = sizes
    return [[ranks[i * outer_stride + j * inner_stride] for j in range(inner)] for i in range(outer)]


def _dimensions(layout: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Size and stride of each dimension."""
    if "axes" in layout:
        return [_dimension(axis.state["shape"], axis.state["stride"]) for axis in layout["axes"]]
    shape, stride = layout["shape"], layout["stride"]
    if isinstance(shape, int):
        return [(shape, stride)]
    return [_dimension(*each) for each in zip(shape, stride, strict=True)]


def _dimension(shape: Any, stride: Any) -> tuple[int, int]:
    if isinstance(shape, int):
        return shape, stride
    if not shape:  # a dimension of one rank
        return 1, 0
    (size,), (step,) = shape, stride
    return size, step
