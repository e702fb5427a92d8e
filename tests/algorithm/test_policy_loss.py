import math

import pytest
import torch

from dapo_cli.algorithm.policy_loss import policy_loss


def losses_of(ratios, advantages, low=0.2, high=0.28, dual=10.0):
    """Token losses of the given ratios, and the gradient of their sum with respect to the log-probs."""
    logprobs = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    old_logprobs = torch.zeros_like(logprobs)
    losses = policy_loss(logprobs, old_logprobs, torch.tensor(advantages, dtype=torch.float64), low, high, dual)
    (gradient,) = torch.autograd.grad(losses.loss.sum(), logprobs)
    return losses, gradient.tolist()


def test_golden_group_of_two():
    # A = +1: -min(1.5, 1.28) = -1.28 and -0.5. A = -1: 1.5, max(0.5, 0.8) = 0.8, min(20, 10) = 10, 1. Sum 11.52.
    losses, gradient = losses_of([1.5, 0.5, 1.5, 0.5, 20.0, 1.0], [1, 1, -1, -1, -1, -1])
    assert losses.loss.tolist() == pytest.approx([-1.28, -0.5, 1.5, 0.8, 10.0, 1.0])
    assert losses.loss.sum().item() == pytest.approx(11.52)
    assert gradient == pytest.approx([0.0, -0.5, 1.5, 0.0, 0.0, 1.0])
    assert losses.clipped_high.tolist() == [True, False, False, False, False, False]
    assert losses.clipped_low.tolist() == [False, False, False, True, False, False]
    assert losses.clipped_dual.tolist() == [False, False, False, False, True, False]
    assert losses.ratio.tolist() == pytest.approx([1.5, 0.5, 1.5, 0.5, 20.0, 1.0])
    assert not losses.ratio.requires_grad


def test_without_dual_clip():
    losses, gradient = losses_of([20.0], [-1], dual=None)
    assert (losses.loss.tolist(), gradient) == (pytest.approx([20.0]), pytest.approx([20.0]))
    assert losses.clipped_dual.tolist() == [False]


@pytest.mark.parametrize(
    ("ratio", "advantage"), [(1.2801, 2.0), (5.0, 0.1), (0.7999, -2.0), (0.1, -1.0), (10.01, -3.0)]
)
def test_clipped_tokens_have_exactly_zero_gradient(ratio, advantage):
    losses, gradient = losses_of([ratio], [advantage])
    assert gradient == [0.0]
    assert sum(int(flag) for flag in (losses.clipped_low, losses.clipped_high, losses.clipped_dual)) == 1


@pytest.mark.parametrize(("ratio", "advantage"), [(0.01, 2.0), (1.2799, 1.0), (0.8001, -1.0), (9.99, -1.0), (7.0, 0.0)])
def test_other_tokens_have_the_plain_gradient(ratio, advantage):
    losses, gradient = losses_of([ratio], [advantage])
    assert gradient == pytest.approx([-advantage * ratio])
    assert not (losses.clipped_low | losses.clipped_high | losses.clipped_dual).any()


def test_clip_flags_match_the_published_definition():
    generator = torch.Generator().manual_seed(0)
    logprobs, old_logprobs, advantages = torch.randn(3, 4000, generator=generator, dtype=torch.float64)
    losses = policy_loss(logprobs, old_logprobs, advantages, 0.2, 0.28, 3.0)
    ratio = (logprobs - old_logprobs).exp()
    unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(0.8, 1.28)
    both = torch.maximum(unclipped, clipped)
    assert torch.equal(losses.clipped_low | losses.clipped_high, clipped > unclipped)
    assert torch.equal(losses.clipped_dual, (advantages < 0) & (both > -advantages * 3.0))
    expected = torch.where(advantages < 0, torch.minimum(both, -advantages * 3.0), both)
    torch.testing.assert_close(losses.loss, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_log_ratio_is_clamped(sign):
    logprobs = torch.tensor([100.0 * sign], dtype=torch.float64)
    losses = policy_loss(logprobs, torch.zeros(1, dtype=torch.float64), torch.ones(1), 0.2, 0.28, None)
    assert losses.ratio.item() == pytest.approx(math.exp(20.0 * sign))


def test_not_a_number_stays_visible():
    losses = policy_loss(torch.tensor([math.nan]), torch.zeros(1), torch.ones(1), 0.2, 0.28, 10.0)
    assert losses.loss.isnan().all()


def test_inputs_are_unchanged():
    inputs = [torch.tensor([0.5, -3.0, 30.0]), torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, -1.0, -1.0])]
    copies = [tensor.clone() for tensor in inputs]
    policy_loss(*inputs, 0.2, 0.28, 10.0)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, copies, strict=True))
