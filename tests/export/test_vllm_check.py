"""vLLM's word on an exported folder, from a real engine in a process of its own."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from vllm_tiny import NEEDS_VLLM, write_model

from dapo_cli.errors import VerificationError
from dapo_cli.export import vllm_check
from dapo_cli.export.comparison import probe_logprobs

pytestmark = NEEDS_VLLM


def test_where_vllm_cannot_be_asked_the_reason_is_said(tmp_path, monkeypatch):
    narrow = LlamaConfig(hidden_size=16, num_attention_heads=2)
    monkeypatch.setattr(vllm_check, "installed_vllm", lambda: None)
    assert vllm_check.reason_not_to_ask(tmp_path, narrow) == "vLLM is not installed"
    monkeypatch.setattr(vllm_check, "installed_vllm", lambda: ("cpu", "0.32.0"))
    assert "attention heads 8 wide" in vllm_check.reason_not_to_ask(tmp_path, narrow)
    monkeypatch.setattr(vllm_check, "available_bytes", lambda: 10**9)
    wide = LlamaConfig(hidden_size=64, num_attention_heads=2)
    (tmp_path / "model.safetensors").write_bytes(b"0" * 10)
    assert "would take 3.0 GB of memory, and 1.0 GB are free" in vllm_check.reason_not_to_ask(tmp_path, wide)


def test_vllm_loads_the_folder_and_notices_other_weights(tmp_path):
    folder = tmp_path / "model"
    write_model(folder)
    config = AutoConfig.from_pretrained(folder)
    assert vllm_check.reason_not_to_ask(folder, config) is None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    expected = probe_logprobs(model)
    assert vllm_check.vllm_difference(folder, config, "float32", expected) < 1e-3
    file = folder / "model.safetensors"
    state = load_file(file)
    state["model.layers.0.mlp.down_proj.weight"] *= -3
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(VerificationError, match="log-probs of a fixed prompt in vLLM are off by"):
        vllm_check.vllm_difference(folder, config, "float32", expected)
    file.write_bytes(b"torn")
    with pytest.raises(VerificationError, match="vLLM cannot load the exported folder: "):
        vllm_check.vllm_difference(folder, config, "float32", expected)
