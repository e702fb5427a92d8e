"""A weight-transfer engine of vLLM that reads a safetensors file; importing this module registers it."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "test_file"


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing to connect to."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """Where the weights lie."""

    path: str


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads what `path` holds."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to connect to."""

    def start_weight_update(self) -> None:
        """Take weights as in a checkpoint."""
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Weights are complete."""
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Without the device synchronisation of the base class, which wants a GPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Read and load."""
        from safetensors.torch import load_file

        self.model.load_weights(iter(load_file(update_info.path).items()))

    def shutdown(self) -> None:
        """Nothing to release."""


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


class Extension:
    """What vLLM's worker imports this module for."""
