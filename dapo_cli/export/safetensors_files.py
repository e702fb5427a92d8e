"""Files of .safetensors one tensor at a time: a header in JSON, then the values one after the other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dapo_cli.errors import DapoError, VerificationError
from dapo_cli.export.lazy_tensors import LazyTensor
from dapo_cli.run.files import Note

_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
_TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}
_INDEX = "model.safetensors.index.json"


def write_safetensors(tensors: Mapping[str, LazyTensor], folder: Path, file_bytes: int, note: Note) -> None:
    """Write all tensors in files of at most `file_bytes`, a larger tensor in one of its own, with an index if several.

    One tensor is in memory at a time.

    Raises:
        VerificationError: a value is not finite, or a dtype has no place in such a file.
    """
    parts = list(_split(tensors, file_bytes))
    where: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        name = "model.safetensors" if len(parts) == 1 else f"model-{number:05}-of-{len(parts):05}.safetensors"
        _write_file(folder / name, {each: tensors[each] for each in names})
        where |= dict.fromkeys(names, name)
        note(f"written {name} ({number} of {len(parts)})")
    if len(parts) > 1:
        total = sum(each.size_bytes for each in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_lazily(files: Sequence[Path]) -> dict[str, LazyTensor]:
    """The tensors in `files` by name. A file is mapped while one of its tensors is in use, and no longer.

    Raises:
        DapoError: a file cannot be read, or there is none.
    """
    if not files:
        raise DapoError("no .safetensors file", hint="Is the folder complete?")
    tensors: dict[str, LazyTensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118, it is no mapping
                    part = stored.get_slice(name)
                    shape, dtype = tuple(part.get_shape()), _TORCH_DTYPES.get(part.get_dtype())
                    if dtype is None:
                        raise DapoError(f"{path}: {name}: {part.get_dtype()} is not read")
                    tensors[name] = LazyTensor(shape, dtype, partial(read_tensor, path, name))
        except (OSError, SafetensorError) as error:
            raise DapoError(f"{path}: cannot be read: {error}") from error
    return tensors


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a file, mapped."""
    with safe_open(path, framework="pt") as stored:
        tensor: Tensor = stored.get_tensor(name)
    return tensor


def read_index(folder: Path) -> dict[str, str] | None:
    """Name of the file that holds each tensor, None where one file holds all."""
    if not (folder / _INDEX).is_file():
        return None
    where: dict[str, str] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    return where


def _split(tensors: Mapping[str, LazyTensor], file_bytes: int) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + tensor.size_bytes > file_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.size_bytes
    yield names


def _write_file(path: Path, tensors: Mapping[str, LazyTensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise VerificationError(f"export: {name}: {tensor.dtype} has no place in a model folder")
        begin, end = end, end + tensor.size_bytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the values begin at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            _write_values(file, name, tensor)
        file.flush()
        os.fsync(file.fileno())


def _write_values(file: BinaryIO, name: str, tensor: LazyTensor) -> None:
    values: Tensor = tensor.read()
    if tuple(values.shape) != tensor.shape or values.dtype != tensor.dtype:
        raise VerificationError(f"export: {name}: {tuple(values.shape)} {values.dtype} where {tensor.shape} was said")
    if values.numel() and not torch.isfinite(torch.stack(torch.aminmax(values))).all():
        dtype = str(values.dtype).removeprefix("torch.")
        raise VerificationError(f"export: values that are not finite in {dtype}: {name}")
    file.write(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
