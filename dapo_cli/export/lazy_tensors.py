"""Tensors that are known by shape before they are read, so that a model is converted one tensor at a time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dapo_cli.errors import VerificationError


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor on the CPU that `read` makes, each time anew."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        """Of its values."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def cast_tensors(tensors: Mapping[str, LazyTensor], dtype: torch.dtype) -> dict[str, LazyTensor]:
    """The same in another precision; whole numbers stay as they are."""
    return {name: _cast(each, dtype) if each.dtype.is_floating_point else each for name, each in tensors.items()}


def _cast(tensor: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    return LazyTensor(tensor.shape, dtype, lambda: tensor.read().to(dtype))


def tied_once(tensors: Mapping[str, LazyTensor], config: Any, where: str) -> dict[str, LazyTensor]:
    """The same with every tensor that the model has under several names (a tied head) under the first of them alone.

    Raises:
        VerificationError: two of its names are stored with different values.
    """
    kept = dict(tensors)
    for first, *twins in shared_names(config):
        for twin in twins:
            if twin in kept:
                tensor = kept.pop(twin)
                if first in kept and not torch.equal(kept[first].read(), tensor.read()):
                    raise VerificationError(f"{where}: {twin} differs from {first}, to which the config ties it")
                kept.setdefault(first, tensor)
    return kept


def shared_names(config: Any) -> list[list[str]]:
    """Names of each parameter that a model made by `config` has under several, such as a tied head."""
    return _shared_names(_empty_model(config))


def _shared_names(model: Any) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _empty_model(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def load_differences(tensors: Mapping[str, LazyTensor], config: Any) -> list[str]:
    """What a model made by `config` lacks in these tensors, or does not know, by name and shape; reads no values.

    transformers itself compares where accelerate is installed, and so knows the names that it changes while loading,
    such as those of experts; else names must be the model's own.
    """
    state = {name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in tensors.items()}
    if importlib.util.find_spec("accelerate") is None:
        return _name_differences(state, _empty_model(config))
    _, info = _class_of(config).from_pretrained(
        None, config=config, state_dict=state, device_map="meta", output_loading_info=True, ignore_mismatched_sizes=True
    )
    return loading_problems(info)


def loading_problems(info: Mapping[str, Any]) -> list[str]:
    """One line for each tensor that transformers did not find, did not know, or found in another shape."""
    lines = [f"missing: {name}" for name in sorted(info["missing_keys"])]
    lines += [f"unexpected: {name}" for name in sorted(info["unexpected_keys"])]
    for name, stored, wanted in sorted(info["mismatched_keys"]):
        lines.append(f"{name}: shape {tuple(stored)}, the model has {tuple(wanted)}")
    return lines


def _name_differences(state: Mapping[str, Tensor], model: Any) -> list[str]:
    twins = {twin for _, *rest in _shared_names(model) for twin in rest}
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in twins}
    shapes = [
        (name, state[name].shape, wanted[name].shape)
        for name in state.keys() & wanted.keys()
        if state[name].shape != wanted[name].shape
    ]
    return loading_problems(
        {
            "missing_keys": wanted.keys() - state.keys(),
            "unexpected_keys": state.keys() - wanted.keys(),
            "mismatched_keys": shapes,
        }
    )


def load_into_model(tensors: Mapping[str, LazyTensor], config: Any, dtype: torch.dtype) -> Any:
    """The model with these values, in `dtype` and eval mode; all of them are in memory."""
    state = {name: each.read().clone() for name, each in tensors.items()}
    model = _class_of(config).from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


def _class_of(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM._model_mapping[type(config)]
