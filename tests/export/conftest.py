import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

SIZES = {
    "vocab_size": 260,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_model(family, seed=0):
    torch.manual_seed(seed)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))


@pytest.fixture(scope="session")
def models():
    """Tiny models with random weights; tests that change one copy it first."""
    return {family: make_model(family) for family in ("llama", "qwen2_tied")}


@pytest.fixture(scope="session")
def tokenizer():
    """Four special tokens and one token per byte."""
    tokens = ["<pad>", "<bos>", "<eos>", "<unk>", *sorted(ByteLevel.alphabet())]
    return Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )
