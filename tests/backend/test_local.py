"""The local backend: what a checkpoint holds, what it refuses, and that old log-probs are cut as the updates are."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import fixed_batch, tiny_policy, tiny_recipe

from dapo_cli.backend.local import LocalBackend, pick_device, set_threads
from dapo_cli.errors import DapoError, UsageError


@pytest.fixture
def make_backend(tmp_path):
    """Build a backend over a tiny random model saved as a folder."""

    def make(seed=0, **changes):
        folder = tmp_path / f"model-{seed}"
        tiny_policy(seed).save_pretrained(folder)
        return LocalBackend(tiny_recipe(**changes), str(folder), SimpleNamespace())

    return make


def parameters(backend):
    return torch.cat([parameter.detach().flatten() for parameter in backend.policy.parameters()])


def test_saved_and_loaded_the_next_update_is_the_same_bit_for_bit(make_backend, tmp_path):
    batch = fixed_batch()
    one = make_backend()
    one.update(batch, 1e-2)
    one.save(tmp_path)
    metrics = one.update(batch, 1e-2)
    other = make_backend(seed=1)
    other.load(tmp_path)
    assert other.update(batch, 1e-2) == metrics
    assert torch.equal(parameters(one), parameters(other))


def test_a_checkpoint_of_another_model_is_refused(make_backend, tmp_path):
    from safetensors.torch import save_file

    backend = make_backend()
    backend.save(tmp_path)
    save_file({"other.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(DapoError, match="not a checkpoint of this model"):
        backend.load(tmp_path)


def test_weights_that_cannot_be_written_are_an_os_error(make_backend, tmp_path):
    with pytest.raises(OSError, match=r"exist|No such file"):
        make_backend().save(tmp_path / "gone")


def test_logprobs_do_not_depend_on_the_micro_batch_split(make_backend):
    batch = fixed_batch()
    whole = make_backend(train={"tokens_per_microbatch": 100_000}).logprobs(batch)
    split = make_backend(train={"tokens_per_microbatch": 20}).logprobs(batch)
    np.testing.assert_allclose(whole, split, atol=1e-5)
    assert whole.shape == (int(batch.response_lengths.sum()),)


def test_activation_checkpointing_changes_no_number(make_backend):
    batch = fixed_batch()
    plain, recomputing = make_backend(), make_backend(model={"path": "toy", "activation_checkpointing": True})
    assert recomputing.policy.training
    assert plain.update(batch, 1e-2) == recomputing.update(batch, 1e-2)
    assert torch.equal(parameters(plain), parameters(recomputing))


def test_bfloat16_computes_over_float32_weights(make_backend):
    batch = fixed_batch()
    full, half = make_backend(), make_backend(model={"path": "toy", "dtype": "bfloat16"})
    assert {parameter.dtype for parameter in half.policy.parameters()} == {torch.float32}
    difference = np.abs(full.logprobs(batch) - half.logprobs(batch))
    assert 1e-5 < difference.mean() < 2e-2
    half.update(batch, 1e-2)
    assert {state["exp_avg"].dtype for state in half.optimizer.state.values()} == {torch.float32}


def test_cuda_is_refused_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="torch sees no GPU"):
        pick_device(tiny_recipe(backend={"device": "cuda"}).backend)
    assert pick_device(tiny_recipe().backend).type == "cpu"


def test_small_models_run_on_one_thread_unless_told_otherwise():
    before = torch.get_num_threads()
    try:
        assert set_threads(tiny_recipe().backend, 200_000) == 1
        assert set_threads(tiny_recipe(backend={"threads": 2}).backend, 200_000) == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
