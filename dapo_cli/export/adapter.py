"""Export the adapters of a LoRA run in peft's format, believed only after peft has loaded them and found them equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo_cli.export.comparison import (
    logprob_difference,
    probe_logprobs,
    refuse_differences,
    refuse_not_finite,
    tensor_differences,
)
from dapo_cli.export.folder import Dtype, folder_in_the_making, made_by, refuse_dtype
from dapo_cli.export.model_card import model_card
from dapo_cli.export.trained_weights import Adapted

if TYPE_CHECKING:
    import torch


def export_adapter(adapted: Adapted, destination: Path, dtype: Dtype, provenance: Mapping[str, Any]) -> Path:
    """Write the adapters in `dtype` with peft's config and a model card; returns `destination`.

    The folder is written beside its destination, loaded by peft onto the base model, compared (names, shapes, values,
    log-probs), and only then renamed. The policy of `adapted` is used up.

    Raises:
        UsageError: `destination` exists and is not an empty folder, or an unknown dtype.
        VerificationError: what was written is not what was trained; nothing is left behind.
    """
    import torch

    from dapo_cli.policy.lora import adapter_files, adapter_state

    destination = destination.resolve()
    refuse_dtype(dtype)
    with folder_in_the_making(destination) as partial:
        state = {name: each.to(getattr(torch, dtype)) for name, each in adapter_state(adapted.policy).items()}
        refuse_not_finite(state, dtype)
        for name, content in adapter_files(state, adapted.lora, adapted.base_model, adapted.revision).items():
            (partial / name).write_bytes(content)
        card = model_card(destination.name, {**provenance, **made_by(dtype)}, library="peft")
        (partial / "README.md").write_text(card, "utf-8")
        refuse_differences(destination, _differences(adapted.policy, state, partial))
    return destination


def _differences(policy: Any, state: dict[str, torch.Tensor], folder: Path) -> Iterator[str]:
    """What peft makes of `folder` that is not `state` beside the policy's frozen weights, one line each."""
    from peft import PeftModel

    from dapo_cli.policy.lora import adapter_state, remove_adapters, trained_tensors

    for trained, rounded in zip(trained_tensors(policy).values(), state.values(), strict=True):
        trained.copy_(rounded)
    policy.float()  # what the frozen weights were rounded to stays; only the comparison is exact
    policy.set_attn_implementation("eager")
    expected = probe_logprobs(policy)
    remove_adapters(policy)
    try:
        loaded = PeftModel.from_pretrained(policy, str(folder)).eval()
    except Exception as error:  # whatever stops peft here stops the user's too
        yield f"cannot be loaded: {type(error).__name__}: {error}"
        return
    different = list(
        tensor_differences({name: each.float() for name, each in state.items()}, adapter_state(loaded.get_base_model()))
    )
    yield from different
    if not different:
        yield from logprob_difference(expected, probe_logprobs(loaded), "float32")
