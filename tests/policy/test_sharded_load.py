"""Loading into shards: what transformers loads, or a refusal in one line that names the file or the weight."""

import numpy as np
import pytest
import torch
from ranks import CPU, batch_of, one_rank, recipe_of
from safetensors.torch import load_file, save_file
from tiny import tiny_policy
from transformers import CohereConfig, LlamaConfig, MistralConfig, Qwen3NextConfig

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.policy import sharded_load
from dapo_cli.policy.forward import share_logprobs
from dapo_cli.policy.model import load_model
from dapo_cli.policy.partition import shares
from dapo_cli.policy.sharded_load import (
    empty_policy,
    load_sharded_policy,
    local_model_folder,
    probe_architecture,
    rebuild_buffers,
)
from dapo_cli.policy.weights import whole

pytestmark = pytest.mark.distributed

SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def mesh():
    with one_rank() as mesh:
        yield mesh


def save(folder, *, tied=False, dtype=torch.float32, max_shard_size="1GB"):
    policy = tiny_policy()
    policy.config.tie_word_embeddings = tied
    policy.tie_weights()
    policy.generation_config.max_new_tokens = 7
    policy.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def assert_equal_to_transformers(policy, folder):
    expected = load_model(str(folder), recipe_of().model, CPU)
    for left, right in (
        (policy.state_dict(), expected.state_dict()),
        (dict(policy.named_buffers()), dict(expected.named_buffers())),
    ):
        assert left.keys() == right.keys()
        assert all(torch.equal(whole(left[name]), tensor) for name, tensor in right.items())
    share = shares(batch_of("many"), 1, recipe_of().train)[0]
    found, wanted = (share_logprobs(model, share, recipe_of()) for model in (policy, expected))
    np.testing.assert_array_equal(found, wanted)
    assert policy.config.to_dict() == expected.config.to_dict()
    assert policy.generation_config.to_dict() == expected.generation_config.to_dict()
    assert policy.training == expected.training


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_shard_size", ["1GB", "8KB"])
def test_a_policy_is_what_transformers_loads(mesh, tmp_path, tied, dtype, max_shard_size):
    folder = save(tmp_path / "model", tied=tied, dtype=dtype, max_shard_size=max_shard_size)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (max_shard_size == "8KB")
    policy = load_sharded_policy(folder, recipe_of(), mesh, CPU)
    assert (policy.lm_head.weight is policy.model.embed_tokens.weight) == tied
    assert all(parameter.dtype == torch.float32 for parameter in policy.parameters())
    assert_equal_to_transformers(policy, folder)


def test_a_tied_head_that_is_stored_twice_stays_tied(mesh, tmp_path):
    folder = save(tmp_path / "model", tied=True)
    change_tensors(folder, lambda tensors: {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    policy = load_sharded_policy(folder, recipe_of(), mesh, CPU)
    assert policy.lm_head.weight is policy.model.embed_tokens.weight
    assert_equal_to_transformers(policy, folder)


def change_tensors(folder, change):
    """Add what `change` makes of the tensors; None takes one away."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors |= change(tensors)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file, {"format": "pt"})


NORM = "model.norm.weight"
TENSOR_FAULTS = {
    "missing": (lambda tensors: {NORM: None}, "these weights are not in the checkpoint: model.norm.weight"),
    "other shape": (lambda tensors: {NORM: torch.ones(8)}, r"norm.weight is \(8,\) in the checkpoint, \(16,\) by its"),
    "float8": (lambda tensors: {NORM: tensors[NORM].to(torch.float8_e4m3fn)}, "float8_e4m3fn in the checkpoint: quant"),
    "integers": (lambda tensors: {NORM: tensors[NORM].to(torch.int8)}, "norm.weight is torch.int8 in the checkpoint"),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_weights_that_would_be_read_wrongly_are_refused_by_name(mesh, tmp_path, fault):
    change, message = TENSOR_FAULTS[fault]
    folder = save(tmp_path / "model")
    change_tensors(folder, change)
    with pytest.raises(UsageError, match=message):
        load_sharded_policy(folder, recipe_of(), mesh, CPU)


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


FILE_FAULTS = {
    "missing": (
        lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(),
        "model-00002-of-00002.safetensors is missing, which model.safetensors.index.json names",
    ),
    "half": (
        lambda folder: halve(folder / "model-00001-of-00002.safetensors"),
        "model-00001-of-00002.safetensors: cannot be read",
    ),
    "index": (
        lambda folder: halve(folder / "model.safetensors.index.json"),
        "model.safetensors.index.json: cannot be read",
    ),
    "none": (
        lambda folder: [file.unlink() for file in folder.glob("*.safetensors")],
        "no .safetensors file in",
    ),
    "config": (lambda folder: halve(folder / "config.json"), "cannot be loaded: It looks like the config file"),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_files_that_are_missing_or_damaged_are_refused_by_name(mesh, tmp_path, fault):
    change, message = FILE_FAULTS[fault]
    folder = save(tmp_path / "model", dtype=torch.bfloat16, max_shard_size="8KB")
    change(folder)
    with pytest.raises(UsageError, match=message):
        load_sharded_policy(folder, recipe_of(), mesh, CPU)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CohereConfig(**SMALL, eos_token_id=1), "CohereForCausalLM gives other logits when sequences are packed"),
        (MistralConfig(**SMALL, sliding_window=8), r"sliding-window attention \(8 tokens\) is not supported"),
        # Its first layer alone attends as ours does; the second mixes along the pack.
        (
            Qwen3NextConfig(**SMALL, layer_types=["full_attention", "linear_attention"] * 2),
            "Qwen3NextForCausalLM gives other logits when sequences are packed",
        ),
    ],
)
def test_architectures_that_cannot_be_trained_packed_are_refused(config, message):
    with pytest.raises(DapoError, match=message):
        probe_architecture(config, recipe_of())


def test_the_probe_of_an_architecture_leaves_config_and_random_numbers_alone():
    config = LlamaConfig(**SMALL)
    before, state = config.to_dict(), torch.get_rng_state()
    probe_architecture(config, recipe_of())
    assert config.to_dict() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_buffers_that_cannot_be_computed_from_the_config_are_refused(tmp_path):
    class Counted(torch.nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.register_buffer("sum", torch.tensor(first + second), persistent=False)

    policy = empty_policy(save(tmp_path / "model"), recipe_of())
    policy.model.counted = Counted(1, 2)
    with pytest.raises(UsageError, match=r"model\.counted has buffers that cannot be rebuilt"):
        rebuild_buffers(policy, CPU)


def test_a_local_folder_is_itself(tmp_path):
    assert local_model_folder(str(tmp_path), None) == tmp_path


def test_a_hub_model_is_downloaded_without_what_is_not_read(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(sharded_load, "download_model", lambda *arguments: asked.append(arguments) or tmp_path)
    assert local_model_folder("org/name", "abc") == tmp_path
    [(repository, revision, patterns)] = asked
    assert (repository, revision) == ("org/name", "abc")
    names = ["model-00001-of-00002.safetensors", "config.json", "vocab.txt", "pytorch_model.bin", "model.gguf"]
    from huggingface_hub.utils import filter_repo_objects

    assert list(filter_repo_objects(names, allow_patterns=patterns)) == names[:3]
