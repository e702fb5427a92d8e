"""Reading the tensors of one rank's file without running anything that the file names.

torch unpickles by weights-only loading with nothing allowed but plain tensors and the inert stand-ins below, which take
the place of torch's classes for sharded tensors: they only keep what the file says of them, so files of any torch
version since 2.4 read alike, and no process group is needed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.serialization import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    get_unsafe_globals_in_checkpoint,
)

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.export.verl_mesh import Mesh, mesh_of


class _Inert:
    """What a file says of an object: arguments of its making, and its state."""

    def __new__(cls, *args: Any) -> _Inert:
        made = object.__new__(cls)
        made.args, made.state = args, {}
        return made

    def __init__(self, *args: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Shard(_Inert): ...


class _Replicate(_Inert): ...


class _InertDTensor(Tensor):
    """The shape, and in `state` the rank's own part and its place."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func}: a stand-in has no values")

    def __setstate__(self, state: Any) -> None:
        self.state = state[1] if isinstance(state, tuple) else state


# Where torch 2.4 to 2.13 keep each class.
_PLACES = ("torch.distributed._tensor", "torch.distributed.tensor")
_STAND_INS: dict[type[Any], tuple[str, ...]] = {
    _InertDTensor: tuple(f"{place}{module}.DTensor" for place in _PLACES for module in ("", ".api", "._api")),
    _Shard: tuple(f"{place}.placement_types.Shard" for place in _PLACES),
    _Replicate: tuple(f"{place}.placement_types.Replicate" for place in _PLACES),
    _Inert: (
        *(
            f"{place}.{module}.{name}"
            for place in _PLACES
            for module in ("placement_types", "_dtensor_spec")
            for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")
        ),
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed._mesh_layout._FlatLayout",
        "torch.distributed._mesh_layout._MeshLayout",
    ),
}
_REFUSED = {
    "ShardedTensor": "ShardedTensor of FSDP without a device mesh",
    "_StridedShard": "tensor parallelism under FSDP",
    "Partial": "sums that were not reduced",
    "_MaskPartial": "tensor parallelism of embeddings",
}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one rank holds of a tensor."""

    local: Tensor
    """In the file until it is used."""
    shape: tuple[int, ...]
    """Of the whole."""
    shard_dim: int | None
    """None: `local` is a whole copy."""
    mesh: Mesh | None
    """None: the file holds a plain tensor."""


def read_rank_file(path: Path) -> dict[str, Part]:
    """The tensors of one rank by name, mapped from the file rather than read.

    Raises:
        DapoError: the file is missing or damaged.
        UsageError: it names what is not loaded as data, or its layout is not read; says what.
    """
    if not path.is_file():
        raise DapoError(f"{path}: no such file", hint="All files of the ranks must be in one folder.")
    _check_archive(path)
    with _only_stand_ins():
        try:
            unsafe = get_unsafe_globals_in_checkpoint(str(path))
            state = {} if unsafe else torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # a pickle made by somebody else fails in any way it likes
            raise UsageError(f"{path}: cannot be read as tensors alone: {str(error).splitlines()[0][:200]}") from error
    if unsafe:
        raise UsageError(f"{path}: {_unsafe_in_words(unsafe)}")
    if not isinstance(state, Mapping) or not state:
        raise UsageError(f"{path}: holds no tensors by name")
    try:
        return {str(name): _part(value, f"{path}: {name}") for name, value in state.items()}
    except UsageError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: its tensors are sharded in a way that is not known: {error!r}") from error


def _check_archive(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        raise DapoError(f"{path}: damaged, or not written by torch 1.6 or newer", hint="Copy it again.")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DapoError(f"{path}: damaged: {error}", hint="Copy it again.") from error
    if broken is not None:
        raise DapoError(f"{path}: damaged: {broken} does not have its checksum", hint="Copy it again.")


@contextmanager
def _only_stand_ins() -> Iterator[None]:
    before = get_safe_globals()
    clear_safe_globals()
    add_safe_globals([(cast(Any, kind), name) for kind, names in _STAND_INS.items() for name in names])
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _unsafe_in_words(unsafe: list[str]) -> str:
    known = sorted({_REFUSED[name] for each in unsafe if (name := each.rpartition(".")[2]) in _REFUSED})
    if known:
        return f"holds {', '.join(known)}, a layout that is not read"
    return f"asks to load {', '.join(sorted(unsafe)[:5])}, which is not data; nothing of the file was run"


def _part(value: Any, where: str) -> Part:
    if not isinstance(value, Tensor):
        raise UsageError(f"{where}: not a tensor but {type(value).__name__}")
    if not isinstance(value, _InertDTensor):
        return Part(value.detach(), tuple(value.shape), None, None)
    local, spec = value.state["_local_tensor"], value.state["_spec"].state
    mesh = mesh_of(spec["mesh"].state, where)
    return Part(local.detach(), tuple(value.shape), _shard_dim(spec["placements"], where), mesh)


def _shard_dim(placements: tuple[Any, ...], where: str) -> int | None:
    """Dimension along which the last mesh dimension shards; the one before it holds replicas."""
    *outer, inner = placements
    if any(not isinstance(each, _Replicate) for each in outer):
        raise UsageError(f"{where}: sharded in two directions, a layout that is not read")
    if isinstance(inner, _Replicate):
        return None
    return int(inner.state["dim"] if "dim" in inner.state else inner.args[0])
