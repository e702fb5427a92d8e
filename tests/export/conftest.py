import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

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


@pytest.fixture(scope="session")
def verl_root(models, tokenizer, tmp_path_factory):
    """Runs of verl, one for each name in `verl_saves`; only read, tests that change one copy it."""
    import verl_saves

    root = tmp_path_factory.mktemp("verl")
    for family, model in models.items():
        torch.save(model, root / f"{family}.pt")
    subprocess.run([sys.executable, verl_saves.__file__, str(root)], check=True, timeout=300)
    for name, (family, *_) in {**verl_saves.SAVES, **verl_saves.LORA_SAVES}.items():
        describe(verl_saves.actor(root, name), models[family], tokenizer)
    for name in verl_saves.FOREIGN:
        describe(verl_saves.actor(root, name), models["llama"], tokenizer)
    return root


def describe(actor, model, tokenizer):
    """What rank 0 saves beside the weights."""
    model.config.save_pretrained(actor / "huggingface")
    (actor / "huggingface" / "generation_config.json").write_text('{"top_k": 20, "eos_token_id": 2}')
    tokenizer.save_pretrained(actor / "huggingface")
    (actor.parent.parent / "latest_checkpointed_iteration.txt").write_text("7")


@pytest.fixture
def verl_copy(verl_root, tmp_path):
    """Copies the run of a name to where a test may change it; returns its actor folder."""
    import shutil

    from verl_saves import actor

    def copy(name):
        shutil.copytree(verl_root / name, tmp_path / name)
        return actor(tmp_path, name)

    return copy
