"""Proving that an engine has the policy's weights: the numbers, the thresholds, and what a canary sees."""

import numpy as np
import pytest
import torch
from tiny import VOCAB, tiny_policy, tiny_recipe

from dapo_cli.backend import probe
from dapo_cli.backend.arrivals import StaleWeights
from dapo_cli.backend.probe import (
    compare,
    largest_allowed,
    perturbed,
    policy_logprobs,
    probe_sequences,
    prove,
)
from dapo_cli.policy.lora import add_adapters
from dapo_cli.recipe.schema import Lora

SEQUENCES = probe_sequences([np.arange(5, dtype=np.int32), np.arange(9, dtype=np.int32)], VOCAB)


class Engine:
    """A copy of the policy that takes weights by name, but for those it loses."""

    def __init__(self, lost=()):
        self.model = tiny_policy(seed=9)
        self.lost = lost

    def take(self, policy):
        sent = {name: tensor for name, tensor in policy.state_dict().items() if name not in self.lost}
        self.model.load_state_dict(sent, strict=False)

    def logprobs(self):
        return policy_logprobs(self.model, SEQUENCES, tiny_recipe())


def proof(policy, *engines, dtype="float32"):
    def send():
        for engine in engines:
            engine.take(policy)

    return prove(
        lambda: perturbed(policy),
        send,
        lambda: policy_logprobs(policy, SEQUENCES, tiny_recipe()),
        lambda: [engine.logprobs() for engine in engines],
        dtype,
    )


def test_probe_sequences_are_the_beginnings_of_prompts_that_differ_there():
    long = np.arange(200, dtype=np.int32) % VOCAB
    found = probe_sequences([long, long[:1], long[:100], long[:7]], VOCAB)
    assert [len(sequence) for sequence in found] == [48, 7]
    np.testing.assert_array_equal(found[0], long[:48])


def test_probe_sequences_end_when_there_are_144_tokens_or_no_more_prompts():
    # 48 x 3 = 144; 5 x 28 = 140 < 144 <= 5 x 29.
    prompts = {size: [np.arange(k, k + size, dtype=np.int32) for k in range(50)] for size in (5, 60)}
    assert [len(sequence) for sequence in probe_sequences(prompts[60], VOCAB)] == [48] * 3
    assert [len(sequence) for sequence in probe_sequences(prompts[5], VOCAB)] == [5] * 29
    assert [len(sequence) for sequence in probe_sequences(prompts[5][:2], VOCAB)] == [5] * 2


def test_without_a_prompt_there_is_one_sequence_that_every_model_has():
    (found,) = probe_sequences([], VOCAB)
    assert len(found) == 48
    assert 0 <= found.min() <= found.max() < VOCAB
    np.testing.assert_array_equal(found, probe_sequences([], VOCAB)[0])


def test_the_policys_log_probs_are_those_of_its_own_forward_at_temperature_1():
    policy = tiny_policy()
    found = policy_logprobs(policy, SEQUENCES, tiny_recipe(rollout={"temperature": 0.5}))
    policy.set_attn_implementation("eager")
    for sequence, values in zip(SEQUENCES, found, strict=True):
        ids = torch.from_numpy(sequence.astype(np.int64))
        expected = torch.log_softmax(policy(input_ids=ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]
        np.testing.assert_allclose(values, expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "moved", "differences", "allowed"),
    [
        ("float32", 0.6, [0.0, 9e-5], True),
        ("float32", 0.6, [0.0, 1.1e-4], False),
        ("bfloat16", 0.6, [0.0, 0.59], True),  # mean 0.295, half of 0.6 is 0.3
        ("bfloat16", 0.6, [0.3, 0.31], False),
        ("bfloat16", 0.1, [0.0, 0.11], False),
        ("float32", 0.6, [0.0, np.nan], False),
        ("bfloat16", 0.6, [0.0, np.nan], False),
    ],
)
def test_float32_is_judged_by_the_largest_difference_and_bfloat16_by_the_mean(dtype, moved, differences, allowed):
    policy = [np.zeros(2, np.float32)]
    engine = [np.array(differences, np.float32)]
    limit = largest_allowed(dtype, moved)
    if allowed:
        metrics = compare(policy, engine, dtype, limit, "sync of step 1")
        assert metrics["sync/probe_mean"] == pytest.approx(np.mean(differences))
        assert metrics["sync/probe_max"] == pytest.approx(np.max(differences))
    else:
        with pytest.raises(StaleWeights, match="sync of step 1: the engine's weights are not the policy's"):
            compare(policy, engine, dtype, limit, "sync of step 1")


@pytest.mark.parametrize("adapters", [False, True])
def test_a_perturbation_changes_every_tensor_and_is_undone_bit_for_bit(adapters):
    policy = tiny_policy()
    if adapters:
        add_adapters(policy, Lora(rank=2, alpha=4.0, targets=("q_proj",)), 0, "float32")
    before = {name: tensor.clone() for name, tensor in policy.named_parameters()}
    with perturbed(policy):
        assert not any(torch.equal(before[name], tensor) for name, tensor in policy.named_parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.named_parameters())


def test_a_large_tensor_is_perturbed_in_pieces_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(probe, "_PERTURBED_AT_ONCE", 40)  # two rows of 16
    policy = tiny_policy()
    before = policy.lm_head.weight.detach().clone()
    with perturbed(policy):
        changed = policy.lm_head.weight.detach() / before - 1
    # 5% of the cosines of 0, 1, ..., 31 radians, anew for every piece.
    wave = 0.05 * torch.cos(torch.arange(32.0)).reshape(2, 16)
    torch.testing.assert_close(changed, wave.repeat(len(before) // 2, 1), rtol=0, atol=1e-6)
    assert torch.equal(policy.lm_head.weight, before)


def test_an_engine_that_takes_everything_passes_and_follows():
    policy, engine = tiny_policy(), Engine()
    assert proof(policy, engine) > 1e-2
    engine.take(policy)
    compare(policy_logprobs(policy, SEQUENCES, tiny_recipe()), engine.logprobs(), "float32", 1e-4, "after")


@pytest.mark.parametrize("lost", list(tiny_policy().state_dict()))
def test_whatever_tensor_is_lost_the_canary_sees_it_though_the_engine_had_the_true_one(lost):
    policy, whole, broken = tiny_policy(), Engine(), Engine({lost})
    broken.model.load_state_dict(policy.state_dict())
    with pytest.raises(StaleWeights, match="canary sync, engine 1"):
        proof(policy, whole, broken)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_takes_nothing_fails_the_canary_in_both_precisions(dtype):
    policy = tiny_policy()
    broken = Engine(set(policy.state_dict()))
    broken.model.load_state_dict(policy.state_dict())
    with pytest.raises(StaleWeights, match="canary sync, engine 0: the engine's weights are not the policy's"):
        proof(policy, broken, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_canary_that_moves_nothing_proves_nothing(dtype):
    policy, engine = tiny_policy(), Engine()
    with torch.no_grad():
        policy.lm_head.weight.zero_()
        for parameter in policy.model.parameters():
            parameter.mul_(1e-4)
    with pytest.raises(StaleWeights, match="it proves nothing"):
        proof(policy, engine, dtype=dtype)
