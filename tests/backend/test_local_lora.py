"""The local backend with LoRA: what is trained, what a checkpoint holds, and that a resume is exact."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from samplings import SAMPLING
from tiny import fixed_batch, tiny_policy, tiny_recipe

from dapo_cli.backend.local import LocalBackend
from dapo_cli.backend.probe import policy_logprobs
from dapo_cli.errors import DapoError
from dapo_cli.policy.weights import is_adapter
from dapo_cli.types import Problem, RolloutRequest

LORA = {"rank": 2, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}


@pytest.fixture
def make_backend(tmp_path):
    """Build a LoRA backend over a tiny random model saved as a folder."""

    def make(lora=LORA, **model):
        folder = tmp_path / "model"
        if not folder.exists():
            tiny_policy().save_pretrained(folder)
        tokenizer = SimpleNamespace(decode=lambda ids, **_: str(ids))
        return LocalBackend(tiny_recipe(model={"path": "toy", "lora": lora, **model}), str(folder), tokenizer)

    return make


def copies(backend):
    return {name: tensor.clone() for name, tensor in backend.policy.state_dict().items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_change_adapters_alone_and_lower_the_loss(make_backend, dtype):
    backend, batch = make_backend(dtype=dtype), fixed_batch()
    before = copies(backend)
    losses = [backend.update(batch, 1e-2)["loss/policy"] for _ in range(5)]
    assert losses[-1] < losses[0] - 1e-3
    for name, tensor in copies(backend).items():
        assert torch.equal(tensor, before[name]) != is_adapter(name), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_holds_adapters_alone_and_the_next_update_is_the_same_bit_for_bit(make_backend, tmp_path, dtype):
    batch, one = fixed_batch(), make_backend(dtype=dtype)
    one.update(batch, 1e-2)
    one.save(tmp_path)
    assert all(is_adapter(name) for name in load_file(tmp_path / "model.safetensors"))
    metrics = one.update(batch, 1e-2)
    other = make_backend(dtype=dtype)
    other.load(tmp_path)
    assert other.update(batch, 1e-2) == metrics
    changed = copies(other)
    assert all(torch.equal(tensor, changed[name]) for name, tensor in copies(one).items())


def test_checkpoints_of_other_adapters_and_of_whole_models_are_refused(make_backend, tmp_path):
    make_backend().save(tmp_path)
    for other in ({**LORA, "rank": 4}, {**LORA, "targets": ["q_proj"]}):
        with pytest.raises(DapoError, match=r"not a checkpoint of this model: .*lora_A"):
            make_backend(lora=other).load(tmp_path)
    with pytest.raises(DapoError, match="not a checkpoint of this model"):
        make_backend(lora=None).load(tmp_path)


def test_it_says_how_much_is_trained(make_backend):
    assert "320 of 6.03k parameters trained, optimizer state 2.56kB" in make_backend().describe()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_hf_engine_samples_from_the_adapted_policy(make_backend, dtype):
    backend, batch = make_backend(dtype=dtype, activation_checkpointing=True), fixed_batch()
    plain = backend.logprobs(batch)
    for _ in range(3):
        backend.update(batch, 1e-2)
    assert np.abs(backend.logprobs(batch) - plain).max() > 0.05
    request = RolloutRequest(0, Problem("id", "text", (), "1", "test"), np.arange(5, dtype=np.int32), SAMPLING, (7, 8))
    group = next(backend.generate([request]))
    assert backend.policy.training
    for rollout in group.rollouts:
        sequence = np.concatenate([group.prompt_ids, rollout.response_ids])
        expected = policy_logprobs(backend.policy, [sequence], backend.recipe)[0][len(group.prompt_ids) - 1 :]
        tolerance = {"float32": 2e-5, "bfloat16": 0.1}[dtype]
        np.testing.assert_allclose(rollout.rollout_logprobs, expected, atol=tolerance, rtol=0)
