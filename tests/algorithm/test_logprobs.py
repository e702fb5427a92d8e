import pytest
import torch

from dapo_cli.algorithm.logprobs import chosen_logprobs

TOKENS, HIDDEN, VOCAB, TEMPERATURE = 23, 8, 50, 0.7


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCAB, (TOKENS,), generator=generator)


def unchunked(hidden, weight, targets):
    scaled = (hidden @ weight.T).float() / TEMPERATURE
    log_softmax = scaled.log_softmax(-1)
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    return log_softmax[torch.arange(TOKENS), targets], entropy.detach()


@pytest.mark.parametrize("chunk_tokens", [1, 5, 23, 1000])
def test_equals_the_unchunked_computation_with_its_gradients(chunk_tokens):
    hidden, weight, targets = inputs()
    slopes = torch.linspace(-1, 2, TOKENS)
    expected, expected_entropy = unchunked(hidden, weight, targets)
    expected_gradients = torch.autograd.grad((expected * slopes).sum(), (hidden, weight))
    logprobs, entropy = chosen_logprobs(hidden, lambda rows: rows @ weight.T, targets, TEMPERATURE, chunk_tokens)
    gradients = torch.autograd.grad((logprobs * slopes).sum(), (hidden, weight))
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    assert not entropy.requires_grad
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, expected_entropy)
    torch.testing.assert_close(gradients, expected_gradients)


def test_bfloat16_logits_are_raised_to_float32():
    hidden, weight, targets = inputs(torch.bfloat16)
    logprobs, entropy = chosen_logprobs(hidden, lambda rows: rows @ weight.T, targets, TEMPERATURE, 5)
    expected, expected_entropy = unchunked(hidden, weight, targets)
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close((logprobs, entropy), (expected, expected_entropy))


def test_uniform_distribution_by_hand():
    # Equal logits over 50 tokens: log-prob -ln 50, entropy ln 50 = 3.912023.
    hidden, _, targets = inputs()
    logprobs, entropy = chosen_logprobs(hidden, lambda rows: rows.new_ones(len(rows), VOCAB), targets, 1.0, 4)
    assert logprobs.tolist() == pytest.approx([-3.912023] * TOKENS)
    assert entropy.tolist() == pytest.approx([3.912023] * TOKENS)


def rows_of_saved_logits(forward):
    """Run `forward`; rows of each tensor as wide as the vocabulary that is kept for the backward pass."""
    rows = []

    def pack(tensor):
        if tensor.dim() == 2 and tensor.shape[1] == VOCAB:
            rows.append(tensor.shape[0])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    return rows, result


def test_never_more_than_a_chunk_of_logits_in_forward_and_backward():
    hidden, weight, targets = inputs()
    seen = []

    def head(rows):
        seen.append(len(rows))
        return torch.nn.functional.linear(rows, weight)

    kept, (logprobs, _) = rows_of_saved_logits(lambda: chosen_logprobs(hidden, head, targets, TEMPERATURE, 5))
    assert seen == [5, 5, 5, 5, 3]
    assert kept == []
    logprobs.sum().backward()
    assert sorted(seen[5:]) == [3, 5, 5, 5, 5]  # each chunk once more, one at a time
    kept_by_unchunked, _ = rows_of_saved_logits(lambda: unchunked(hidden, weight, targets))
    assert TOKENS in kept_by_unchunked  # what the measurement above would have shown


def test_without_gradient_nothing_is_computed_twice():
    hidden, weight, targets = inputs()
    with torch.no_grad():
        logprobs, _ = chosen_logprobs(hidden, lambda rows: rows @ weight.T, targets, TEMPERATURE, 5)
    assert not logprobs.requires_grad
    torch.testing.assert_close(logprobs, unchunked(hidden, weight, targets)[0].detach())


def test_float64_is_not_rounded_down():
    hidden, weight, targets = inputs(torch.float64)
    logprobs, _ = chosen_logprobs(hidden, lambda rows: rows @ weight.T, targets, TEMPERATURE, 5)
    expected = (hidden @ weight.T / TEMPERATURE).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, rtol=1e-14, atol=1e-14)


def test_no_tokens():
    hidden, weight, targets = inputs()
    logprobs, entropy = chosen_logprobs(hidden[:0], lambda rows: rows @ weight.T, targets[:0], TEMPERATURE, 5)
    assert (logprobs.shape, entropy.shape) == ((0,), (0,))


def test_chunk_of_nothing_is_refused():
    hidden, weight, targets = inputs()
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        chosen_logprobs(hidden, lambda rows: rows @ weight.T, targets, TEMPERATURE, 0)


def test_inputs_are_unchanged():
    hidden, weight, targets = inputs()
    copies = [tensor.detach().clone() for tensor in (hidden, weight, targets)]
    chosen_logprobs(hidden, lambda rows: rows @ weight.T, targets, TEMPERATURE, 5)[0].sum().backward()
    assert all(torch.equal(tensor, copy) for tensor, copy in zip((hidden, weight, targets), copies, strict=True))
