"""Packed attention: sequences in one pack must not see each other, and a mask must never be built."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.policy import attention
from dapo_cli.policy.attention import packed_attention, segments_of
from dapo_cli.policy.model import probe_packing

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def tiny(config_class, model_class, **extra):
    torch.manual_seed(0)
    attention.register()
    config = config_class(**SIZES, **extra)
    config._attn_implementation = attention.NAME
    return model_class(config).eval()


FAMILIES = [
    pytest.param(LlamaConfig, LlamaForCausalLM, {}, id="llama"),
    pytest.param(Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}, id="qwen2-tied"),
    pytest.param(Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}, id="qwen3"),
]


@pytest.mark.parametrize(("config_class", "model_class", "extra"), FAMILIES)
def test_a_pack_gives_the_logits_and_gradients_of_each_sequence_alone(config_class, model_class, extra):
    model = tiny(config_class, model_class, **extra)
    generator = torch.Generator().manual_seed(1)
    lengths = np.array([3, 17, 1, 9, 17, 40], dtype=np.int32)
    sequences = [torch.randint(0, 40, (int(n),), generator=generator) for n in lengths]

    model.set_attn_implementation("eager")
    alone = [model(input_ids=ids[None]).logits[0] for ids in sequences]
    torch.cat(alone).square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.set_attn_implementation(attention.NAME)
    model.zero_grad()
    packed = model(
        input_ids=torch.cat(sequences)[None],
        position_ids=torch.cat([torch.arange(int(n)) for n in lengths])[None],
        use_cache=False,
        segments=segments_of(lengths, torch.device("cpu")),
    ).logits[0]
    packed.square().sum().backward()

    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-3, rtol=1e-4, msg=name)


def test_no_other_sequence_moves_a_sequences_output_by_a_single_bit():
    lengths = np.array([5, 6, 5], dtype=np.int32)
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(1, 2, 16, 8, generator=generator) for _ in range(3))
    segments = segments_of(lengths, torch.device("cpu"))
    before, _ = packed_attention(torch.nn.Identity(), query, key, value, None, segments=segments)
    for tensor in (query, key, value):
        tensor[:, :, 5:11] += 100.0
    after, _ = packed_attention(torch.nn.Identity(), query, key, value, None, segments=segments)
    assert torch.equal(before[:, :5], after[:, :5])
    assert torch.equal(before[:, 11:], after[:, 11:])
    assert not torch.equal(before[:, 5:11], after[:, 5:11])


def test_padding_of_a_bucket_is_bounded():
    lengths = np.random.default_rng(0).integers(1, 4000, size=400).astype(np.int32)
    segments = segments_of(lengths, torch.device("cpu"))
    computed = sum(bucket.real.shape[0] * bucket.real.shape[1] ** 2 for bucket in segments.buckets)
    needed = int((lengths.astype(np.int64) ** 2).sum())
    assert computed < 1.4 * needed
    assert len(segments.buckets) < 60


def test_a_mask_beside_segments_is_refused():
    tensor = torch.zeros(1, 1, 2, 4)
    segments = segments_of(np.array([2], dtype=np.int32), torch.device("cpu"))
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="takes no mask"):
        packed_attention(torch.nn.Identity(), tensor, tensor, tensor, mask, segments=segments)
    with pytest.raises(ValueError, match="needs segments, or a mask"):
        packed_attention(torch.nn.Identity(), tensor, tensor, tensor, None)


def test_the_probe_refuses_a_model_whose_forward_does_more_than_the_head():
    model = tiny(LlamaConfig, LlamaForCausalLM)
    probe_packing(model, "fine")
    model.lm_head.register_forward_hook(lambda module, args, out: out + args[0].shape[1])
    with pytest.raises(DapoError, match="LlamaForCausalLM gives other logits when sequences are packed"):
        probe_packing(model, "scaled")


def test_the_probe_refuses_a_sliding_window():
    model = tiny(LlamaConfig, LlamaForCausalLM)
    model.config.sliding_window = 4096
    with pytest.raises(UsageError, match="sliding-window attention \\(4096 tokens\\) is not supported"):
        probe_packing(model, "windowed")


def test_half_precision_reaches_the_kernel_in_one_dtype():
    """Rotary embeddings promote queries and keys to float32 under autocast; the CUDA kernel wants one dtype."""
    half = torch.zeros(1, 1, 3, 8, dtype=torch.bfloat16)
    segments = segments_of(np.array([3], dtype=np.int32), torch.device("cpu"))
    out, _ = packed_attention(torch.nn.Identity(), half.float(), half.float(), half, None, segments=segments)
    assert out.dtype == torch.bfloat16
    model = tiny(LlamaConfig, LlamaForCausalLM)
    from dapo_cli.rollout.cache import GrowingCache

    cache = GrowingCache()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
        model.get_decoder()(input_ids=torch.arange(4)[None], attention_mask=mask, past_key_values=cache, use_cache=True)
    assert {tensor.dtype for pair in cache._buffers for tensor in pair} == {torch.bfloat16}
