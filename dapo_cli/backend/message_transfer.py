"""The transports on the engine's side: vLLM's own, which take an update with gaps, made to refuse it; and messages.

vLLM's worker processes import this module, because it is named as their extension; that registers the transports.
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
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from dapo_cli.backend.arrivals import require_complete, unwritten


@dataclass
class MessageInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on."""


@dataclass
class MessageUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket."""

    bucket: bytes
    """Tensors by name, in the safetensors format."""


class MessageTransferEngine(WeightTransferEngine[MessageInitInfo, MessageUpdateInfo]):  # type: ignore[misc]
    """The CPU transport. Loads each bucket as it comes, layer by layer as vLLM's own transports do."""

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


def without_gaps(engine: type[WeightTransferEngine]) -> type[WeightTransferEngine]:
    """A transport that ends an update as `engine` does, and then refuses it if some weight was not written."""

    class Whole(engine):  # type: ignore[misc]
        def finish_weight_update(self) -> None:
            missing = unwritten(self.model)  # vLLM forgets at the end what it counted
            super().finish_weight_update()
            require_complete(missing)

    return Whole


class RegisterTransfer:
    """What vLLM mixes into its workers; importing it is all it is for."""


for _name, _engine in (
    ("message", MessageTransferEngine),
    ("nccl", NCCLWeightTransferEngine),
    ("ipc", IPCWeightTransferEngine),
):
    WeightTransferEngineFactory.register_engine(f"whole_{_name}", without_gaps(_engine))
