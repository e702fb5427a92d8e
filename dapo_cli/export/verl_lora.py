"""Adapters in verl's checkpoints: added to the weights they stand beside, alpha / rank times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.export.lazy_tensors import LazyTensor
from dapo_cli.export.lora_merge import ADAPTER, FOREIGN, adapter_halves, with_adapter
from dapo_cli.export.verl_files import read_json

TRAIN_META = "lora_train_meta.json"
ADAPTER_CONFIG = "adapter_config.json"
_PREFIX, _BASE = "base_model.model.", ".base_layer."
# What changes the product of the two halves, or which weights belong to the adapter.
_UNHANDLED = (
    "use_dora",
    "use_rslora",
    "fan_in_fan_out",
    "modules_to_save",
    "alpha_pattern",
    "rank_pattern",
    "lora_bias",
)


def is_lora(tensors: Mapping[str, LazyTensor]) -> bool:
    """Whether there are adapters among the tensors."""
    return any(FOREIGN.search(name) for name in tensors)


def merge_lora(
    tensors: Mapping[str, LazyTensor], folder: Path, alpha: float | None
) -> tuple[dict[str, LazyTensor], str]:
    """The tensors of the plain model, adapters added in float32, and what was added in words.

    `folder` is that of the ranks' files; alpha is read from what training wrote there, `alpha` says it where nothing
    was written.

    Raises:
        UsageError: nobody says alpha, two sources differ, the weights beside the adapters are not stored, or the
            adapters are of a kind that is not merged.
    """
    halves = adapter_halves(tensors, str(folder))
    rank = _common_rank(halves, folder)
    alpha, source = _alpha(folder, rank, alpha)
    plain = {_plain_name(name): tensor for name, tensor in tensors.items() if not ADAPTER.fullmatch(name)}
    for layer, half in halves.items():
        name = _plain_name(f"{layer}.weight")
        if f"{layer}{_BASE}weight" not in tensors:
            raise UsageError(
                f"{folder}: holds adapters without the weights they were trained beside ({name})",
                hint="load the base model and the adapter with peft; verl saved adapters alone",
            )
        plain[name] = with_adapter(plain[name], half, alpha / rank, f"{folder}: {layer}")
    return plain, f"rank {rank}, alpha {alpha:g} ({source}), {len(halves)} layers"


def _plain_name(name: str) -> str:
    return name.removeprefix(_PREFIX).replace(_BASE, ".")


def _common_rank(halves: Mapping[str, Mapping[str, LazyTensor]], folder: Path) -> int:
    ranks = sorted({half["A"].shape[0] for half in halves.values()})
    if len(ranks) != 1:
        raise UsageError(f"{folder}: adapters of different ranks ({', '.join(map(str, ranks))}), which are not merged")
    return ranks[0]


def _alpha(folder: Path, rank: int, given: float | None) -> tuple[float, str]:
    """Alpha and who says it.

    verl's own merger writes adapter configs with alpha 0, which says nothing.
    """
    said = dict(_recorded(folder, rank))
    if given is not None:
        said["--lora-alpha"] = given
    if not said:
        raise UsageError(
            f"{folder}: nothing says the alpha that the adapters were trained with: no {TRAIN_META}, no "
            f"{ADAPTER_CONFIG} with an alpha above 0",
            hint=f"give actor_rollout_ref.model.lora_alpha of the run: --lora-alpha N; the rank is {rank}",
        )
    if len(set(said.values())) > 1:
        raise UsageError(f"{folder}: alpha is {', but '.join(f'{value:g} by {name}' for name, value in said.items())}")
    return next((value, name) for name, value in said.items())


def _recorded(folder: Path, rank: int) -> Iterator[tuple[str, float]]:
    places = [folder, folder / "lora_adapter"]
    if folder.name == "actor":
        places += [folder.parent, folder.parent / "lora_adapter"]
    for path in (place / name for place in places for name in (TRAIN_META, ADAPTER_CONFIG)):
        if path.is_file():
            values = read_json(path)
            _refuse_unhandled(values, rank, path)
            alpha = values.get("lora_alpha")
            if isinstance(alpha, int | float) and alpha > 0:
                yield str(path.relative_to(folder.parent)), float(alpha)


def _refuse_unhandled(values: Mapping[str, Any], rank: int, path: Path) -> None:
    for key in _UNHANDLED:
        if values.get(key):
            raise UsageError(f"{path}: {key} is {values[key]}: adapters of this kind are not merged")
    if values.get("bias", "none") != "none":
        raise UsageError(f"{path}: bias is {values['bias']}: adapters of this kind are not merged")
    if values.get("r", rank) != rank:
        raise UsageError(f"{path}: rank {values['r']}, but the adapters in the checkpoint are of rank {rank}")
