"""Whole tensors from the parts that verl's ranks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.export.lazy_tensors import LazyTensor
from dapo_cli.export.verl_files import VerlCheckpoint
from dapo_cli.export.verl_mesh import Mesh
from dapo_cli.export.verl_pickle import Part, read_rank_file
from dapo_cli.run.files import Note


def verl_tensors(checkpoint: VerlCheckpoint, note: Note) -> dict[str, LazyTensor]:
    """The tensors of a checkpoint by the names in its files, whole, each read when it is wanted.

    Of a mesh with replicas only the first is read.

    Raises:
        DapoError: a file is missing or damaged.
        UsageError: a layout that is not read, or files that do not belong together; names it.
    """
    first = read_rank_file(checkpoint.rank_file(0))
    mesh = _common_mesh(first, checkpoint)
    ranks = mesh.replicas[0]
    if len(mesh.replicas) > 1:
        note(f"{checkpoint.folder}: {len(mesh.replicas)} replicas of {len(ranks)} parts each; the first is read")
    files = {rank: first if rank == 0 else read_rank_file(checkpoint.rank_file(rank)) for rank in ranks}
    for rank, parts in files.items():
        different = sorted(parts.keys() ^ first.keys())
        if different:
            raise DapoError(
                f"{checkpoint.rank_file(rank)}: not of the same save as {checkpoint.rank_file(0).name}: "
                f"only one of them holds {different[0]}"
            )
    return {name: _whole(name, [files[rank][name] for rank in ranks], checkpoint) for name in first}


def _common_mesh(parts: Mapping[str, Part], checkpoint: VerlCheckpoint) -> Mesh:
    """The mesh of all sharded tensors; plain tensors alone are those of one rank, or copies."""
    meshes = {part.mesh for part in parts.values() if part.mesh is not None}
    if len(meshes) > 1:
        raise UsageError(f"{checkpoint.rank_file(0)}: tensors sharded over different meshes, which is not read")
    mesh = meshes.pop() if meshes else Mesh((tuple(range(checkpoint.ranks)),))
    if sorted(rank for replica in mesh.replicas for rank in replica) != list(range(checkpoint.ranks)):
        raise UsageError(
            f"{checkpoint.rank_file(0)}: sharded over the ranks {mesh.replicas}, but its name says {checkpoint.ranks}"
        )
    if 0 not in mesh.replicas[0]:
        raise UsageError(f"{checkpoint.rank_file(0)}: rank 0 is not in the first replica of {mesh.replicas}")
    return mesh


def _whole(name: str, parts: Sequence[Part], checkpoint: VerlCheckpoint) -> LazyTensor:
    first, where = parts[0], f"{checkpoint.folder}: {name}"
    alike = {(part.shape, part.shard_dim, part.mesh, part.local.dtype) for part in parts}
    if len(alike) > 1:
        raise UsageError(f"{where}: the ranks say different things of its shape, dtype or sharding")
    if first.shard_dim is None:
        _refuse_differing_copies(parts, where)
        return LazyTensor(first.shape, first.local.dtype, lambda: first.local)
    dim = first.shard_dim
    _refuse_gaps(parts, dim, where)
    # A rank beyond the end of a short tensor holds nothing, in whatever shape.
    filled = [part.local for part in parts if part.local.numel() or part is first]
    return LazyTensor(first.shape, first.local.dtype, partial(_concatenate, filled, dim))


def _concatenate(locals_: Sequence[Tensor], dim: int) -> Tensor:
    return locals_[0] if len(locals_) == 1 else torch.cat(list(locals_), dim)


def _refuse_differing_copies(parts: Sequence[Part], where: str) -> None:
    if any(not torch.equal(parts[0].local, part.local) for part in parts[1:]):
        raise UsageError(f"{where}: not sharded, and yet different on each rank, a layout that is not read")


def _refuse_gaps(parts: Sequence[Part], dim: int, where: str) -> None:
    whole = parts[0].shape
    lengths = [part.local.shape[dim] if part.local.numel() else 0 for part in parts]
    if sum(lengths) != whole[dim]:
        raise UsageError(f"{where}: its parts are {lengths} long, the whole has {whole[dim]} along dimension {dim}")
    for part in parts:
        if part.local.numel() and (*part.local.shape[:dim], *part.local.shape[dim + 1 :]) != (
            *whole[:dim],
            *whole[dim + 1 :],
        ):
            raise UsageError(f"{where}: a part of shape {tuple(part.local.shape)} does not fit into {whole}")
