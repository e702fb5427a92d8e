"""Sending the policy's weights to vLLM replicas, from every policy rank at once; rank 0 talks to the engines.

Shared by all transports: what is sent, in which order, in which precision, and the client that drives the replicas.
Only the wire differs: vLLM's own `nccl` and `ipc` on GPUs, and messages on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import torch
from safetensors.torch import save
from torch import Tensor

from dapo_cli.policy import lora
from dapo_cli.policy.weights import TensorShape, policy_weights, weight_shapes
from dapo_cli.recipe.schema import Recipe

Transport = Literal["message", "nccl", "ipc"]

WORKER_EXTENSION = "dapo_cli.backend.message_transfer.RegisterTransfer"
"""What vLLM's workers import, so that they know our transports, named `whole_` and the transport."""

BUCKET_BYTES = 64 * 2**20
"""Most that is under way at a time, but for a single tensor that is larger."""


def transport_for(placement: str, device_type: str) -> Transport:
    """How weights travel: GPUs shared with the engine pass memory handles, separate ones broadcast.

    >>> transport_for("colocated", "cuda"), transport_for("separate", "cuda"), transport_for("separate", "cpu")
    ('ipc', 'nccl', 'message')
    """
    if device_type != "cuda":
        return "message"
    return "ipc" if placement == "colocated" else "nccl"


class Client(Protocol):
    """The engines' side of a weight update, on all replicas at once; the names are vLLM's."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect."""
        ...

    def start_weight_update(self) -> None:
        """Begin to replace the weights."""
        ...

    def update_weights(self, update_info: Any) -> None:
        """Receive weights."""
        ...

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update."""
        ...


class RayEngineClient:
    """Drives the replica actors; `policy_version` is what the next update is stamped with."""

    def __init__(self, replicas: Sequence[Any], gpus_per_replica: int, timeout_seconds: float) -> None:
        self.policy_version = 0
        self._replicas = list(replicas)
        self._gpus_per_replica = gpus_per_replica
        self._timeout_seconds = timeout_seconds

    @property
    def num_workers(self) -> int:
        """vLLM workers of all replicas."""
        return len(self._replicas) * self._gpus_per_replica

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect every replica; where ranks count, each replica's follow those of the one before."""
        infos = []
        for number in range(len(self._replicas)):
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] += number * self._gpus_per_replica
            infos.append((info,))
        self._all("init_weight_transfer_engine", infos)

    def start_weight_update(self) -> None:
        """Begin to replace the weights of every replica."""
        self._all("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Hand weights, or what is needed to fetch them, to every replica and wait until they have them."""
        import ray

        shared = ray.put(update_info)
        self._all("update_weights", [(shared,)] * len(self._replicas))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update and stamp it."""
        self._all("finish_weight_update", [(weight_version or str(self.policy_version),)] * len(self._replicas))

    def set_adapter(self, files: dict[str, bytes]) -> None:
        """Give every replica new LoRA adapters."""
        import ray

        shared = ray.put(files)
        self._all("set_adapter", [(shared, self.policy_version)] * len(self._replicas))

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> None:
        from dapo_cli.backend.ray_session import gather

        each = arguments or [()] * len(self._replicas)
        refs = [getattr(replica, method).remote(*given) for replica, given in zip(self._replicas, each, strict=True)]
        names = [f"vLLM replica {number}" for number in range(len(refs))]
        gather(refs, names, "weight sync", self._timeout_seconds)


class WeightSync:
    """One policy rank's part in sending weights; every method is called on all ranks at once."""

    def __init__(self, policy: Any, recipe: Recipe, transport: Transport, client: Any, rank: int) -> None:
        self.policy = policy
        self.recipe = recipe
        self.client = client
        self.rank = rank
        self.dtype = getattr(torch, recipe.model.dtype)
        self._adapters_alone = recipe.model.lora is not None and recipe.model.lora.sync == "adapter"
        self._on_gpu = transport != "message"
        connect = {"message": self._message_sender, "nccl": self._nccl_sender, "ipc": self._ipc_sender}
        self._sender = connect[transport]()

    def send(self, policy_version: int, *, everything: bool) -> None:
        """Send all weights, or with LoRA and `sync: adapter` the adapters alone unless `everything` is asked for."""
        self.client.policy_version = policy_version
        if self._on_gpu:  # vLLM reads the weights on streams of its own, which do not wait for what changed them
            torch.cuda.synchronize()
        if everything or not self._adapters_alone:
            self._sender.send_weights()
        if self._adapters_alone and self.recipe.model.lora is not None:
            state = lora.adapter_state(self.policy)
            if self.rank == 0:
                self.client.set_adapter(lora.adapter_files(state, self.recipe.model.lora, self.recipe.model.path))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What is sent, one whole tensor at a time."""
        return policy_weights(self.policy, self.dtype, merged=not self._adapters_alone)

    def _message_sender(self) -> MessageSender:
        if self.rank == 0:
            self.client.init_weight_transfer_engine({})
        return MessageSender(self, BUCKET_BYTES)

    def _nccl_sender(self) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        from dapo_cli.backend.addresses import free_address

        host, port = free_address()
        info = NCCLTrainerInitInfo(
            host, port, 1 + self.client.num_workers, packed_buffer_size_bytes=BUCKET_BYTES, rank=self.rank
        )
        return WeightTransferTrainerFactory.trainer_init(info, client=self.client, source=_vllm_source(self))

    def _ipc_sender(self) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        buffer_bytes = ipc_buffer_bytes(weight_shapes(self.policy, self.dtype), BUCKET_BYTES)
        info = IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=buffer_bytes, rank=self.rank)
        return WeightTransferTrainerFactory.trainer_init(info, client=self.client, source=_vllm_source(self))


class MessageSender:
    """The CPU transport, on the policy's side: full buckets go to the engines as they fill."""

    def __init__(self, sync: WeightSync, bucket_bytes: int) -> None:
        self._sync = sync
        self._bucket_bytes = bucket_bytes

    def send_weights(self) -> None:
        """One whole update; ranks other than 0 only take part in the gathering."""
        talks = self._sync.rank == 0
        if talks:
            self._sync.client.start_weight_update()
        for bucket in buckets(self._sync.weights(), self._bucket_bytes):
            if talks:
                self._sync.client.update_weights({"bucket": save(bucket)})
        if talks:
            self._sync.client.finish_weight_update()


def buckets(weights: Iterator[tuple[str, Tensor]], bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in order, as many at a time as fit into `bucket_bytes`, at least one."""
    bucket: dict[str, Tensor] = {}
    used = 0
    for name, tensor in weights:
        if bucket and used + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, used = {}, 0
        # A tied head shares its memory, which safetensors refuses within one file.
        host = tensor.contiguous().cpu()
        bucket[name] = host.clone() if any(host.data_ptr() == other.data_ptr() for other in bucket.values()) else host
        used += tensor.nbytes
    if bucket:
        yield bucket


def ipc_buffer_bytes(shapes: Sequence[TensorShape], bucket_bytes: int) -> int:
    """Bytes of the buffer that vLLM's ipc transport shares: a tensor that is larger than it would be refused.

    >>> ipc_buffer_bytes([TensorShape("embed", torch.bfloat16, (152_064, 5_120))], 64 * 2**20)
    1557135360
    """
    return max(bucket_bytes, *(math.prod(each.shape) * each.dtype.itemsize for each in shapes))


def _vllm_source(sync: WeightSync) -> Any:
    """The weights in the form that vLLM's trainer side iterates."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class PolicySource(WeightSource):  # type: ignore[misc]
        def metadata(self) -> list[Any]:
            return [ParamMeta(*shape) for shape in weight_shapes(sync.policy, sync.dtype)]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return sync.weights()

    return PolicySource()
