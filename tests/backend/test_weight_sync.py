"""One contract for every way that weights take: all tensors arrive, the tied head too, and what does not is seen."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from small_cluster import PROMPTS, local_backend, ragged_batch
from tiny import tiny_policy, tiny_recipe
from vllm_tiny import NEEDS_VLLM, TOKENIZER, requests, vllm_recipe

from dapo_cli.backend import in_process, ray_session
from dapo_cli.backend.arrivals import StaleWeights
from dapo_cli.backend.local import LocalBackend
from dapo_cli.backend.weight_sync import (
    BUCKET_BYTES,
    MessageSender,
    RayEngineClient,
    WeightSync,
    _vllm_source,
    buckets,
    ipc_buffer_bytes,
    transport_for,
)
from dapo_cli.policy.weights import TensorShape, policy_weights

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA: benchmarks/device_check.sh")
TRANSPORTS = [
    pytest.param("in_process", marks=NEEDS_VLLM),
    pytest.param("message", marks=[*NEEDS_VLLM, pytest.mark.ray]),
    pytest.param("ipc", marks=[*NEEDS_VLLM, pytest.mark.ray, NEEDS_CUDA]),
    pytest.param("nccl", marks=[*NEEDS_VLLM, pytest.mark.ray, NEEDS_CUDA]),
]


@pytest.fixture(scope="module")
def in_one_process(tied_folder):
    """The local backend with a vLLM engine."""
    backend = LocalBackend(vllm_recipe(), tied_folder, TOKENIZER, PROMPTS, print)
    yield backend
    backend.close()


@pytest.fixture
def backend(request, in_one_process):
    """A backend that sends its weights this way."""
    if request.param == "in_process":
        return in_one_process
    if request.param == "message":
        return request.getfixturevalue("cluster")
    from small_cluster import cluster_recipe, running

    placement = {"ipc": "colocated", "nccl": "separate"}[request.param]
    settings = {"placement": placement, "gpus_per_node": torch.cuda.device_count()}
    return request.getfixturevalue("stack").enter_context(
        running(cluster_recipe(1, settings), request.getfixturevalue("tied_folder"))
    )


@pytest.mark.parametrize("backend", TRANSPORTS, indirect=True)
def test_after_each_sync_the_engine_has_the_new_weights_and_stamps_their_version(backend):
    batch = ragged_batch()
    for version in (11, 12):
        batch = batch.with_old_logprobs(backend.logprobs(batch))
        backend.update(batch, 1e-2)
        assert backend.sync_weights(version)["sync/probe_max"] <= 1e-4
        (group,) = backend.generate(requests(1))
        assert {rollout.policy_version for rollout in group.rollouts} == {version}
        assert backend.sync_weights(version) == {}


@pytest.mark.vllm
def test_local_with_vllm_trains_as_local_with_hf(in_one_process, tied_folder):
    hf = local_backend(in_one_process.recipe, tied_folder)
    batch = ragged_batch()
    np.testing.assert_allclose(hf.logprobs(batch).shape, in_one_process.logprobs(batch).shape)
    assert "vllm engine on cpu" in in_one_process.describe()


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("lm_head.weight", r"lm_head \(0 of 7232 elements\)"),  # 113 tokens x 64
        ("model.layers.1.mlp.down_proj.weight", r"model.layers.1.mlp.down_proj \(0 of 8192 elements\)"),  # 64 x 128
        ("model.norm.weight", r"model.norm \(0 of 64 elements\)"),
    ],
)
def test_a_tensor_that_is_not_handed_over_is_named_at_any_sync(in_one_process, monkeypatch, lost, named):
    def forgetful(policy, dtype, *, merged=True):
        return ((name, tensor) for name, tensor in policy_weights(policy, dtype, merged=merged) if name != lost)

    engine = in_one_process.engine
    engine.weights_changed()
    engine.sync(0)  # the tensor is there to begin with
    engine.weights_changed()
    with monkeypatch.context() as patch:
        patch.setattr(in_process, "policy_weights", forgetful)
        with pytest.raises(StaleWeights, match=f"weights that did not arrive: {named};"):
            engine.sync(1)
    engine.sync(1)


@pytest.mark.vllm
def test_weights_that_arrive_and_are_not_computed_with_fail_the_canary(in_one_process, monkeypatch):
    engine = in_one_process.engine
    engine.weights_changed()
    engine.sync(0)
    model = engine._engine._engine.collective_rpc(lambda worker: worker.get_model())[0]
    old, load = model.lm_head.cpu_linear, engine._engine.load_weights

    def keep_the_old_head(weights):
        load(weights)
        model.lm_head.cpu_linear = old

    engine.weights_changed()
    with monkeypatch.context() as patch:
        patch.setattr(engine._engine, "load_weights", keep_the_old_head)
        patch.setattr(engine, "_limit", None)
        with pytest.raises(StaleWeights, match="canary sync, engine 0: the engine's weights are not the policy's"):
            engine.sync(1)
    engine.sync(1)


@dataclass
class Recorder:
    """A client whose engine is a dictionary."""

    policy_version: int = 0
    calls: list[str] = field(default_factory=list)
    taken: dict[str, Any] = field(default_factory=dict)
    largest: int = 0

    def init_weight_transfer_engine(self, init_info):
        self.calls.append("init")

    def start_weight_update(self):
        self.calls.append("start")

    def update_weights(self, update_info):
        from safetensors.torch import load

        self.largest = max(self.largest, len(update_info["bucket"]))
        self.taken |= load(update_info["bucket"])

    def finish_weight_update(self, weight_version=None):
        self.calls.append("finish")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 5000, BUCKET_BYTES])
def test_messages_hold_every_tensor_once_in_buckets_of_bounded_size(tied, bucket_bytes):
    policy, client = tiny_policy(), Recorder()
    if tied:
        policy.config.tie_word_embeddings = True
        policy.tie_weights()
    sync = WeightSync(policy, tiny_recipe(), "message", client, rank=0)
    MessageSender(sync, bucket_bytes).send_weights()
    state = policy.state_dict()
    assert client.taken.keys() == state.keys()
    assert all(torch.equal(client.taken[name], tensor) for name, tensor in state.items())
    assert client.calls == ["init", "start", "finish"]
    assert client.largest <= max(bucket_bytes, max(tensor.nbytes for tensor in state.values())) + 4096


def test_ranks_other_than_the_first_say_nothing():
    client = Recorder()
    WeightSync(tiny_policy(), tiny_recipe(), "message", client, rank=1).send(1, everything=True)
    assert client.calls == []
    assert client.taken == {}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.vllm
def test_vllms_own_transports_are_told_the_whole_model_and_get_it_in_that_order(tied):
    pytest.importorskip("vllm.distributed.weight_transfer.base")
    policy = tiny_policy()
    if tied:
        policy.config.tie_word_embeddings = True
        policy.tie_weights()
    source = _vllm_source(
        WeightSync(policy, tiny_recipe(model={"path": "toy", "dtype": "bfloat16"}), "message", Recorder(), rank=0)
    )
    told = {meta.name: (meta.dtype, meta.shape) for meta in source.metadata()}
    # vLLM's own check of the order: embeddings, two layers of 9 weights, norm and head.
    groups = list(source.iter_groups())
    assert [names[0] for names, _ in groups][::3] == ["model.embed_tokens.weight", "model.norm.weight"]
    sent = {name: tensor for names, tensors in groups for name, tensor in zip(names, tensors, strict=True)}
    assert told == {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in sent.items()}
    assert len(told) == 2 * 9 + 3
    assert {dtype for dtype, _ in told.values()} == {torch.bfloat16}


class Method:
    """A remote method that notes what it is called with."""

    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def remote(self, *arguments):
        self.calls.append((self.name, *arguments))


class Replica:
    """An actor that does nothing."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return Method(self.calls, name)


def test_replicas_get_ranks_one_after_the_other_and_the_version(monkeypatch):
    monkeypatch.setattr(ray_session, "gather", lambda refs, names, what, timeout_seconds: [])
    replicas = [Replica(), Replica(), Replica()]
    client = RayEngineClient(replicas, gpus_per_replica=2, timeout_seconds=1.0)
    assert client.num_workers == 6
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    client.policy_version = 5
    client.start_weight_update()
    client.finish_weight_update()
    # Rank 0 sends; two workers in each replica.
    for replica, offset in zip(replicas, (1, 3, 5), strict=True):
        assert replica.calls == [
            ("init_weight_transfer_engine", {"rank_offset": offset, "world_size": 7}),
            ("start_weight_update",),
            ("finish_weight_update", "5"),
        ]


def test_the_shared_buffer_holds_the_largest_tensor_whatever_the_bucket():
    shapes = [TensorShape("a", torch.bfloat16, (10, 10)), TensorShape("b", torch.float32, (30,))]
    assert ipc_buffer_bytes(shapes, 64) == 200  # 2 bytes x 100
    assert ipc_buffer_bytes(shapes, 1000) == 1000


def test_a_tensor_larger_than_a_bucket_travels_alone():
    weights = [("a", torch.zeros(10)), ("b", torch.zeros(1000)), ("c", torch.zeros(10)), ("d", torch.zeros(10))]
    assert [list(bucket) for bucket in buckets(iter(weights), 100)] == [["a"], ["b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("placement", "device", "transport"),
    [("colocated", "cuda", "ipc"), ("separate", "cuda", "nccl"), ("colocated", "cpu", "message")],
)
def test_the_way_follows_from_placement_and_device(placement, device, transport):
    assert transport_for(placement, device) == transport
