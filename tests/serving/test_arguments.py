from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from dapo_cli.errors import UsageError
from dapo_cli.serving.arguments import Served, parse_arguments, vllm_arguments

CONFIG = LlamaConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512
)
SERVED = Served(Path("/models/mine"), "mine", "bfloat16", 2, None, None, ())


def pairs(arguments):
    """Arguments and their values; a flag has none."""
    found, key = {}, ""
    for part in arguments:
        if part.startswith("--"):
            key = part
            found[key] = None
        else:
            found[key] = part
    return found


def test_nothing_is_taken_from_the_checkpoints_generation_config():
    assert pairs(vllm_arguments(SERVED, "cuda", CONFIG)) == {
        "--model": "/models/mine",
        "--served-model-name": "mine",
        "--tensor-parallel-size": "2",
        "--dtype": "bfloat16",
        "--generation-config": "vllm",
        "--distributed-executor-backend": "mp",
    }


def test_the_folder_is_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pairs(vllm_arguments(replace(SERVED, folder=Path("mine")), "cuda", CONFIG))["--model"] == f"{tmp_path}/mine"


def test_on_a_cpu_prompts_are_whole_and_the_cache_is_sized():
    found = pairs(vllm_arguments(replace(SERVED, tensor_parallel=1, dtype="float32"), "cpu", CONFIG))
    assert found["--distributed-executor-backend"] == "uni"
    assert found["--no-enable-chunked-prefill"] is None
    assert "--no-enable-chunked-prefill" in found
    assert "--enforce-eager" in found
    assert found["--max-num-batched-tokens"] == "4096"
    # A block is 128 tokens x 2 layers x keys and values x 1 head of 32 x 4 bytes = 65,536 bytes; 64 requests of
    # 512 tokens take 4 blocks each, and vLLM's empty block.
    assert found["--kv-cache-memory-bytes"] == str(65_536 * (64 * 4 + 1))


def test_options_and_extra_arguments_are_passed_on(tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    extra = ("max-num-seqs=8", "--enable_lora", "max_lora_rank=16")
    served = replace(SERVED, max_model_tokens=256, chat_template=template, extra=extra)
    found = pairs(vllm_arguments(served, "cuda", CONFIG))
    assert found["--max-model-len"] == "256"
    assert found["--chat-template"] == str(template)
    assert (found["--max-num-seqs"], found["--enable-lora"], found["--max-lora-rank"]) == ("8", None, "16")


@pytest.mark.parametrize("text", ["generation-config=auto", "model=other", "served_model_name=x", "--dtype=half"])
def test_what_is_stated_cannot_be_stated_again(text):
    with pytest.raises(UsageError, match="is stated by dapo serve"):
        vllm_arguments(replace(SERVED, extra=(text,)), "cuda", CONFIG)


def test_what_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        vllm_arguments(replace(SERVED, chat_template=tmp_path / "no.jinja"), "cuda", CONFIG)
    with pytest.raises(UsageError, match="attention heads are 24 wide"):
        vllm_arguments(SERVED, "cpu", LlamaConfig(hidden_size=48, num_attention_heads=2))
    with pytest.raises(UsageError, match="want KEY=VALUE"):
        vllm_arguments(replace(SERVED, extra=("=1",)), "cuda", CONFIG)


@pytest.mark.vllm
def test_vllm_reads_the_arguments_and_names_those_it_does_not_know():
    pytest.importorskip("vllm")
    parsed = parse_arguments(vllm_arguments(replace(SERVED, tensor_parallel=1), "cpu", CONFIG))
    assert (parsed.generation_config, parsed.enable_chunked_prefill, parsed.enforce_eager) == ("vllm", False, True)
    assert parsed.served_model_name == ["mine"]
    for extra, words in [("no-such-thing=1", "no-such-thing"), ("max-num-seqs=many", "max-num-seqs")]:
        with pytest.raises(UsageError, match=words):
            parse_arguments(vllm_arguments(replace(SERVED, extra=(extra,)), "cuda", CONFIG))
