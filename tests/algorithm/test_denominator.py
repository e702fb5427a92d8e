import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.algorithm.denominator import emulated_partition, loss_weights
from dapo_cli.algorithm.policy_loss import policy_loss

# 12 random batches with the values of an independent implementation (verl 0.9.1, float64).
RECORDED = json.loads((Path(__file__).parent.parent / "cases" / "policy_loss.json").read_text(encoding="utf-8"))
KINDS = ["minibatch", "group", "sequence", "microbatch"]


def reduced(losses: torch.Tensor, lengths: np.ndarray, weights: np.ndarray) -> torch.Tensor:
    """Sum of token losses, each times its rollout's weight."""
    return (losses * torch.from_numpy(np.repeat(weights, lengths))).sum()


def recorded_tokens(case):
    """Log-probs (with gradient), old log-probs and advantages of all response tokens, and the rollouts' lengths."""
    lengths = np.array(case["lengths"])
    inside = torch.arange(len(case["logprobs"][0]))[None, :] < torch.from_numpy(lengths)[:, None]  # [B, longest]
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64)[inside].requires_grad_()
    old_logprobs = torch.tensor(case["old_logprobs"], dtype=torch.float64)[inside]
    advantages = torch.tensor(np.repeat(case["advantages"], lengths), dtype=torch.float64)
    return logprobs, old_logprobs, advantages, lengths


def recorded_losses(case):
    logprobs, old_logprobs, advantages, lengths = recorded_tokens(case)
    clip = (case["clip_ratio_low"], case["clip_ratio_high"], case["dual_clip_ratio"])
    return policy_loss(logprobs, old_logprobs, advantages, *clip), logprobs, lengths


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"seed{case['seed']}")
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_losses_and_gradients(case, kind):
    losses, logprobs, lengths = recorded_losses(case)
    groups = np.repeat(np.arange(case["groups"]), case["group_size"])
    pairs = np.arange(len(lengths)) // 2
    weights = loss_weights(kind, lengths, np.ones(len(lengths), bool), groups, pairs)
    loss = reduced(losses.loss, lengths, weights)
    expected = case["expected"]["microbatch_of_2_sequences" if kind == "microbatch" else kind]
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-7, abs=1e-9)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    if kind in ("minibatch", "sequence"):
        assert gradient.abs().sum().item() == pytest.approx(expected["grad_abs_sum"], rel=1e-7)
        first_row = expected["grad_first_row"]
        padded = gradient[: lengths[0]].tolist() + [0.0] * (len(first_row) - lengths[0])
        assert padded == pytest.approx(first_row, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"seed{case['seed']}")
def test_recorded_clip_fractions_and_kl(case):
    losses, _, _ = recorded_losses(case)
    clipped = (losses.clipped_low | losses.clipped_high).double().mean().item()
    assert clipped == pytest.approx(case["expected"]["clip_fraction"], abs=1e-9)
    assert losses.clipped_dual.double().mean().item() == pytest.approx(case["expected"]["clip_fraction_dual"], abs=1e-9)
    assert -losses.ratio.log().mean().item() == pytest.approx(case["expected"]["kl_old_new"], rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"seed{case['seed']}")
def test_recorded_advantages(case):
    rewards = np.array(case["rewards"]).reshape(case["groups"], case["group_size"])
    advantages = group_advantages(rewards, "group_std")
    assert advantages.ravel() == pytest.approx(case["advantages"], rel=1e-6, abs=1e-7)  # float32


@pytest.mark.parametrize(
    ("kind", "dual", "expected"),
    [
        ("minibatch", 10.0, 1.92),  # 11.52 / 6
        ("minibatch", None, 3.586667),  # 21.52 / 6
        ("group", 10.0, 1.92),  # one group
        ("sequence", 10.0, 1.2175),  # (-1.78 / 2 + 13.3 / 4) / 2
        ("microbatch", 10.0, 1.2175),  # one rollout per micro-batch: the token mean becomes the sequence mean
    ],
)
def test_golden_group_of_two(kind, dual, expected):
    logprobs = torch.tensor([1.5, 0.5, 1.5, 0.5, 20.0, 1.0], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([1.0, 1, -1, -1, -1, -1], dtype=torch.float64)
    lengths = np.array([2, 4])
    losses = policy_loss(logprobs, torch.zeros(6, dtype=torch.float64), advantages, 0.2, 0.28, dual)
    weights = loss_weights(kind, lengths, np.ones(2, bool), np.zeros(2, int), np.arange(2))
    loss = reduced(losses.loss, lengths, weights)
    assert loss.item() == pytest.approx(expected, abs=5e-7)
    if (kind, dual) == ("minibatch", 10.0):
        (gradient,) = torch.autograd.grad(loss, logprobs)
        # -0.5 / 6, 1.5 / 6, 1 / 6
        assert gradient.tolist() == pytest.approx([0, -0.0833333, 0.25, 0, 0, 0.1666667], abs=1e-6)
        assert gradient[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]


def test_each_weight_by_hand():
    # Groups {0: 2 + 4 tokens, 1: 3 + 5 tokens}; micro-batches {0: 2 + 4 + 3 tokens, 1: 5 tokens}.
    lengths, groups, partition = np.array([2, 4, 3, 5]), np.array([7, 7, 9, 9]), np.array([0, 0, 0, 1])
    every = np.ones(4, bool)

    def weights(kind):
        return loss_weights(kind, lengths, every, groups, partition).tolist()

    assert weights("minibatch") == pytest.approx([1 / 14] * 4)
    assert weights("group") == pytest.approx([1 / 12, 1 / 12, 1 / 16, 1 / 16])
    assert weights("sequence") == pytest.approx([1 / 8, 1 / 16, 1 / 12, 1 / 20])
    assert weights("microbatch") == pytest.approx([3 / 4 / 9] * 3 + [1 / 4 / 5])


def test_rollouts_outside_the_loss_enter_no_count():
    # Left: rollout 0 (2 tokens) and 1 (4 tokens) of group 0; all of group 1 is outside, as is micro-batch 1.
    lengths, groups, partition = np.array([2, 4, 3, 5]), np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    in_loss = np.array([True, True, False, False])
    expected = {"minibatch": [1 / 6, 1 / 6], "group": [1 / 6, 1 / 6], "sequence": [1 / 4, 1 / 8]}
    expected["microbatch"] = [1 / 6, 1 / 6]
    for kind, weights in expected.items():
        assert loss_weights(kind, lengths, in_loss, groups, partition).tolist() == pytest.approx([*weights, 0, 0])


def test_rollout_without_tokens_is_outside_the_loss():
    weights = loss_weights("sequence", np.array([0, 4]), np.ones(2, bool), np.zeros(2, int), None)
    assert weights.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_in_the_loss_weighs_nothing(kind, rows):
    zeros = np.zeros(rows, int)
    assert loss_weights(kind, zeros + 2, np.zeros(rows, bool), zeros, zeros).tolist() == [0.0] * rows


def test_microbatch_needs_a_partition():
    with pytest.raises(ValueError, match="microbatch needs a partition"):
        loss_weights("microbatch", np.array([1]), np.array([True]), np.array([0]), None)


ROWS = st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.integers(0, 3), st.integers(0, 3)), min_size=1)


@settings(deadline=None)
@given(ROWS)
def test_token_weights_sum_to_one_and_inputs_are_unchanged(rows):
    lengths, in_loss, groups, partition = (np.array(column) for column in zip(*rows, strict=True))
    inputs = (lengths, in_loss, groups, partition)
    copies = [array.copy() for array in inputs]
    for kind in KINDS:
        weights = loss_weights(kind, *inputs)
        assert weights.dtype == np.float64
        assert (weights * lengths).sum() == pytest.approx(1.0 if in_loss.any() else 0.0)
        assert np.array_equal(weights > 0, in_loss)
    assert all(np.array_equal(array, copy) for array, copy in zip(inputs, copies, strict=True))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 11), st.lists(st.integers(0, 4), min_size=64, max_size=64))
def test_gradient_does_not_depend_on_the_split_into_microbatches(index, microbatches):
    case = RECORDED[index]
    logprobs, old_logprobs, advantages, lengths = recorded_tokens(case)
    groups = np.repeat(np.arange(case["groups"]), case["group_size"])
    token_microbatch = torch.from_numpy(np.repeat(np.array(microbatches)[: len(lengths)], lengths))
    emulated = emulated_partition(lengths, ranks=2, tokens_per_microbatch=12)
    for kind in KINDS:
        weights = loss_weights(kind, lengths, np.ones(len(lengths), bool), groups, emulated)
        token_weights = torch.from_numpy(np.repeat(weights, lengths))

        def backward(rows, token_weights=token_weights):
            losses = policy_loss(logprobs[rows], old_logprobs[rows], advantages[rows], 0.2, 0.28, 10.0)
            return torch.autograd.grad((losses.loss * token_weights[rows]).sum(), logprobs)[0]

        whole = backward(torch.arange(len(logprobs)))
        parts = sum(backward(torch.nonzero(token_microbatch == number).flatten()) for number in range(5))
        torch.testing.assert_close(parts, whole, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize(
    ("lengths", "ranks", "budget", "expected"),
    [
        ([3, 3, 3, 3], 1, 100, [0, 0, 0, 0]),
        ([3, 3, 3, 3], 2, 100, [0, 0, 1, 1]),
        ([3, 3, 3, 3], 2, 5, [0, 1, 2, 3]),
        ([3, 3, 3, 3], 1, 6, [0, 0, 1, 1]),
        ([3, 9, 1, 1], 1, 4, [0, 1, 2, 2]),  # a rollout over the budget stands alone
        ([1, 1, 1, 1, 1], 2, 9, [0, 0, 0, 1, 1]),  # an uneven share
        ([1, 1], 3, 9, [0, 1]),  # a rank without rollouts
        ([], 2, 9, []),
    ],
)
def test_emulated_partition(lengths, ranks, budget, expected):
    assert emulated_partition(np.array(lengths, dtype=np.int32), ranks, budget).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1), st.integers(1, 5), st.integers(1, 60))
def test_emulated_microbatches_stay_in_order_and_under_budget(lengths, ranks, budget):
    partition = emulated_partition(np.array(lengths), ranks, budget)
    assert partition[0] == 0
    assert set(np.diff(partition)) <= {0, 1}
    for number in range(partition[-1] + 1):
        rows = np.array(lengths)[partition == number]
        assert len(rows) == 1 or rows.sum() <= budget
