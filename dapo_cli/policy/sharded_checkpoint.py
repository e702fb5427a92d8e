"""Checkpoints of a sharded policy: every rank writes its own part, and any number of ranks, or one process, reads it.

Tensors are keyed by the name of their parameter (`weights.`, `exp_avg.`, `exp_avg_sq.`, `step.`) in torch's distributed
checkpoint format. Frozen weights are not stored: they are those of the base model. Ranks draw no random numbers, so no
random state is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from dapo_cli.errors import DapoError
from dapo_cli.policy import fsdp
from dapo_cli.policy.model import first_line
from dapo_cli.recipe.schema import Train

FOLDER = "policy"
_WEIGHTS = "weights."
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_sharded(folder: Path, policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write `folder`/policy; called on all ranks at once.

    Raises:
        OSError: it cannot be written.
    """
    with _one_process_is_meant():
        _raising_os_errors(lambda: save(state_of(policy, optimizer), checkpoint_id=folder / FOLDER))


def start_saving(folder: Path, policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Copy the state in host memory and write it in the background; the function returned waits for the end.

    Called on all ranks at once, and so is the function. Training may go on meanwhile.

    Raises:
        OSError: it cannot be written; raised by the function.
    """
    with _one_process_is_meant():
        future: Any = async_save(
            state_of(policy, optimizer), checkpoint_id=folder / FOLDER, process_group=fsdp.background_group()
        )
    return lambda: _raising_os_errors(future.result)


def load_sharded(folder: Path, policy: torch.nn.Module, optimizer: torch.optim.Optimizer, train: Train) -> None:
    """Restore what was saved, whatever the number of ranks was; betas, epsilon and weight decay stay the recipe's.

    Raises:
        DapoError: the checkpoint is of other weights, or cannot be read.
    """
    stored = _stored(folder)
    _make_moments(policy, optimizer, stored)
    state = state_of(policy, optimizer)
    different = sorted(state.keys() ^ stored.keys())
    different += sorted(key for key in state.keys() & stored.keys() if tuple(state[key].shape) != stored[key])
    if different:
        raise DapoError(f"{folder}: not a checkpoint of this model: {', '.join(different[:5])}")
    _load(state, folder)
    for group in optimizer.param_groups:
        group["betas"] = (train.adam_beta1, train.adam_beta2)
        group["eps"] = train.adam_epsilon
        group["weight_decay"] = train.weight_decay


def open_policy_tensors(folder: Path) -> dict[str, tuple[tuple[int, ...], Callable[[], Tensor]]]:
    """Shape of each trained weight of a checkpoint, and what reads it, whole, on the CPU; needs no process group.

    Raises:
        DapoError: the checkpoint cannot be read; by the functions too.
    """
    reader = _OnceReader(folder / FOLDER)

    def read(key: str, shape: tuple[int, ...]) -> Tensor:
        state = {key: torch.empty(shape)}
        _load(state, folder, reader)
        return state[key]

    return {
        key.removeprefix(_WEIGHTS): (shape, partial(read, key, shape))
        for key, shape in _shapes(_metadata(folder, reader)).items()
        if key.startswith(_WEIGHTS)
    }


class _OnceReader(FileSystemReader):
    """Reads the metadata once, however many tensors are loaded one by one: it lists all parts of all ranks."""

    _known: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._known is None:
            self._known = super().read_metadata(*args, **kwargs)
        return self._known


def _load(state: dict[str, Any], folder: Path, reader: FileSystemReader | None = None) -> None:
    try:
        with _one_process_is_meant():
            load(state, storage_reader=reader or FileSystemReader(folder / FOLDER))
    except CheckpointException as error:
        raise DapoError(f"{folder / FOLDER}: the checkpoint cannot be read: {first_reason(error)}") from error


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """That one process reads what many wrote, or the reverse, is what this format is for: torch need not warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def state_of(policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Trained parameters and what the optimizer knows of them, sharing their memory."""
    state: dict[str, Any] = {}
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            state[_WEIGHTS + name] = parameter.detach()
            known = optimizer.state.get(parameter, {})
            state |= {f"{moment}.{name}": known[moment] for moment in _MOMENTS if moment in known}
    return state


def _make_moments(policy: torch.nn.Module, optimizer: torch.optim.Optimizer, stored: dict[str, Any]) -> None:
    """Room for the moments that are stored, and for no others: an optimizer that never stepped has none."""
    for name, parameter in policy.named_parameters():
        if f"step.{name}" in stored:
            optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        else:
            optimizer.state.pop(parameter, None)


def _stored(folder: Path) -> dict[str, tuple[int, ...]]:
    return _shapes(_metadata(folder, FileSystemReader(folder / FOLDER)))


def _metadata(folder: Path, reader: FileSystemReader) -> Metadata:
    try:
        return reader.read_metadata()
    except Exception as error:  # what unpickling a damaged file may raise has no common kind
        raise DapoError(f"{folder / FOLDER}: the checkpoint cannot be read: {first_line(error)}") from error


def _shapes(metadata: Metadata) -> dict[str, tuple[int, ...]]:
    return {key: tuple(entry.size) for key, entry in metadata.state_dict_metadata.items() if hasattr(entry, "size")}


def first_reason(error: CheckpointException) -> str:
    """What stood in the way on the first of the ranks that failed, in one line."""
    failures = [failure[0] for failure in error.failures.values()]
    return first_line(failures[0]) if failures else first_line(error)


def _raising_os_errors(write: Callable[[], object]) -> None:
    """Whatever torch makes of a full disk, as the OSError it is."""
    try:
        write()
    except CheckpointException as error:
        raise OSError(first_reason(error)) from error
    except RuntimeError as error:
        raise OSError(first_line(error)) from error
