"""What a weight update has not written: elements counted in vLLM's own loaders, before the update is brought to an end.

vLLM takes an update that lacks a tensor: it keeps the old layer, or fills the gap in a fused one with whatever memory
holds. Log-probs in bfloat16 may hide that; the count is exact in every precision, under fusing, sharding and padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from dapo_cli.errors import DapoError

_SHOWN = 8
_MESSAGE = re.compile(r"weights that did not arrive: [^;]*;")


class StaleWeights(DapoError):
    """An engine's weights are not the policy's."""


def unwritten(model: Any) -> list[str]:
    """The modules of vLLM's `model` that the update under way has not written as a whole, with both counts.

    To be called when everything was sent and before vLLM finalizes the update.
    """
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    found = []
    for name, module in model.named_modules():
        info, elements = get_layerwise_info(module), _elements(module)
        # vLLM forgets the count of a module when it is complete.
        if elements and info.can_load() and info.load_numel < elements:
            found.append(f"{name} ({info.load_numel} of {elements} elements)")
    return found


def _elements(module: Any) -> int:
    """Elements of a module's own parameters that a checkpoint fills on this worker."""
    from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel

    parameters = [parameter for parameter in module.parameters(recurse=False) if parameter is not None]
    elements = sum(int(get_tensor_load_numel(parameter)) for parameter in parameters)
    shard = getattr(module, "shard_indices", None)
    if shard is not None:  # an embedding or a head: its rows are padded
        elements -= (module.num_embeddings_per_partition - shard.num_org_elements) * module.embedding_dim
    return elements


def require_complete(missing: Sequence[str]) -> None:
    """Refuse an update that left something unwritten.

    Raises:
        StaleWeights: with what `unwritten` found.
    """
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else "")
        raise _stale(f"weights that did not arrive: {shown};")


def of_worker(error: Exception) -> Exception:
    """What vLLM's worker raised: vLLM passes on its words alone.

    >>> of_worker(RuntimeError("Worker failed with error 'weights that did not arrive: norm (0 of 8 elements);', see"))
    StaleWeights('weights that did not arrive: norm (0 of 8 elements); the engine does not have the policy')
    """
    words = _MESSAGE.search(str(error))
    return _stale(words[0]) if words else error


def _stale(words: str) -> StaleWeights:
    return StaleWeights(
        f"{words} the engine does not have the policy",
        hint="nothing was trained on wrong samples; is the architecture in docs/status.md? Report it with these names",
    )


def reload_whole(worker: Any, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Replace all weights of a vLLM worker in this process.

    Raises:
        StaleWeights: `weights` did not write all of the model.
    """
    missing: list[str] = []

    def counted() -> Iterator[tuple[str, Tensor]]:
        yield from weights
        missing.extend(unwritten(worker.get_model()))

    worker.reload_weights(weights_iterator=counted())
    require_complete(missing)
