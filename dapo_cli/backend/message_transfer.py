"""The CPU transport, on the engine's side: weights arrive as messages, one bucket of tensors each.

vLLM's worker processes import this module, because it is named as their extension; that registers the transport.
Nothing of ours imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class MessageInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on."""


@dataclass
class MessageUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket."""

    bucket: bytes
    """Tensors by name, in the safetensors format."""


class MessageTransferEngine(WeightTransferEngine[MessageInitInfo, MessageUpdateInfo]):  # type: ignore[misc]
    """Loads each bucket as it comes, layer by layer as vLLM's own transports do."""

    init_info_cls = MessageInitInfo
    update_info_cls = MessageUpdateInfo

    def init_transfer_engine(self, init_info: MessageInitInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Get the model's layers ready to be loaded anew."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive one bucket, without the device synchronisation of the base class, which wants a GPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: MessageUpdateInfo) -> None:
        """Load one bucket."""
        self.model.load_weights(list(load(update_info.bucket).items()))

    def finish_weight_update(self) -> None:
        """Bring the loaded layers into the form that is computed with."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


class RegisterTransfer:
    """What vLLM mixes into its workers; importing it is all it is for."""


WeightTransferEngineFactory.register_engine("message", MessageTransferEngine)
