"""One contract for every way that weights take: all tensors arrive, the tied head too, and what does not is seen."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from small_cluster import PROMPTS, local_backend, ragged_batch
from tiny import tiny_policy, tiny_recipe
from vllm_tiny import NEEDS_VLLM, TOKENIZER, requests, vllm_recipe

from dapo_cli.backend import in_process
from dapo_cli.backend.local import LocalBackend
from dapo_cli.backend.probe import StaleWeights
from dapo_cli.backend.weight_sync import BUCKET_BYTES, MessageSender, WeightSync, buckets, transport_for
from dapo_cli.policy.weights import policy_weights, weight_shapes

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
@pytest.mark.parametrize("lost", ["lm_head.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_a_tensor_that_is_not_handed_over_fails_the_canary(in_one_process, monkeypatch, lost):
    def forgetful(policy, dtype, *, merged=True):
        return ((name, tensor) for name, tensor in policy_weights(policy, dtype, merged=merged) if name != lost)

    engine = in_one_process.engine
    engine.weights_changed()
    engine.sync(0)  # the tensor is there to begin with
    engine.weights_changed()
    monkeypatch.setattr(in_process, "policy_weights", forgetful)
    monkeypatch.setattr(engine, "_proven", False)
    with pytest.raises(StaleWeights, match="canary sync, engine 0"):
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


def test_what_is_known_before_agrees_with_what_is_sent_and_floats_are_cast():
    policy = tiny_policy()
    sent = list(policy_weights(policy, torch.bfloat16))
    assert [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in sent] == [
        tuple(shape) for shape in weight_shapes(policy, torch.bfloat16)
    ]
    assert {tensor.dtype for _, tensor in sent} == {torch.bfloat16}


def test_a_tensor_larger_than_a_bucket_travels_alone():
    weights = [("a", torch.zeros(10)), ("b", torch.zeros(1000)), ("c", torch.zeros(10)), ("d", torch.zeros(10))]
    assert [list(bucket) for bucket in buckets(iter(weights), 100)] == [["a"], ["b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("placement", "device", "transport"),
    [("colocated", "cuda", "ipc"), ("separate", "cuda", "nccl"), ("colocated", "cpu", "message")],
)
def test_the_way_follows_from_placement_and_device(placement, device, transport):
    assert transport_for(placement, device) == transport
