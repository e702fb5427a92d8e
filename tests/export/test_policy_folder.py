import copy
import json

import pytest
import torch
from safetensors.torch import save_file, save_model
from tiny import tiny_recipe

from dapo_cli.errors import DapoError, VerificationError
from dapo_cli.export.policy_folder import load_policy, weights_hash
from dapo_cli.policy.sharded_checkpoint import save_sharded
from dapo_cli.recipe.dump import to_yaml


@pytest.fixture(params=["llama", "qwen2_tied"])
def run(request, models, tokenizer, tmp_path):
    """A run directory with `model/` and one checkpoint, as training writes them; returns (run, checkpoint, model)."""
    model = models[request.param]
    base, checkpoint = tmp_path / "run" / "model", tmp_path / "run" / "checkpoints" / "step_3"
    checkpoint.mkdir(parents=True)
    model.config.save_pretrained(base)
    tokenizer.save_pretrained(base)
    (base / "generation_config.json").write_text(json.dumps({"top_k": 20, "repetition_penalty": 1.1}))
    save_model(model, str(checkpoint / "model.safetensors"))
    (base.parent / "recipe.yaml").write_text(to_yaml(tiny_recipe()))
    return base.parent, checkpoint, model


def state_without_twins(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def test_a_checkpoint_is_the_model_that_was_saved(run, tokenizer):
    run_dir, checkpoint, model = run
    loaded, loaded_tokenizer = load_policy(run_dir, checkpoint)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == model.config.tie_word_embeddings
    assert loaded.dtype == torch.float32
    assert not loaded.training
    assert (loaded.generation_config.top_k, loaded.generation_config.repetition_penalty) == (20, 1.1)
    assert loaded_tokenizer.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("run", ["qwen2_tied"], indirect=True)
@pytest.mark.parametrize("kept", ["lm_head.weight", "model.embed_tokens.weight", "both"])
def test_a_tied_head_may_be_stored_under_either_name_or_both(run, kept):
    run_dir, checkpoint, model = run
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in {"lm_head.weight", "model.embed_tokens.weight"} - {kept} if kept != "both" else ():
        del state[name]
    save_file(state, checkpoint / "model.safetensors")
    loaded, _ = load_policy(run_dir, checkpoint)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


@pytest.mark.parametrize("run", ["qwen2_tied"], indirect=True)
def test_tied_names_with_different_values_are_refused(run):
    run_dir, checkpoint, model = run
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["lm_head.weight"] += 1
    save_file(state, checkpoint / "model.safetensors")
    with pytest.raises(VerificationError, match=r"lm_head\.weight: differs from model\.embed_tokens\.weight"):
        load_policy(run_dir, checkpoint)


def test_missing_unexpected_and_misshapen_tensors_are_all_named(run):
    run_dir, checkpoint, model = run
    state = state_without_twins(model)
    del state["model.embed_tokens.weight"]
    state["model.norm.weight"] = torch.ones(3)
    state["extra"] = torch.ones(1)
    save_file(state, checkpoint / "model.safetensors")
    with pytest.raises(VerificationError) as caught:
        load_policy(run_dir, checkpoint)
    for line in (
        "missing: model.embed_tokens.weight",
        "unexpected: extra",
        "model.norm.weight: shape (3,), the model has (16,)",
    ):
        assert line in caught.value.message


@pytest.mark.parametrize("name", ["model/config.json", "checkpoints/step_3/model.safetensors"])
def test_missing_files_are_named(run, name):
    run_dir, checkpoint, _ = run
    (run_dir / name).unlink()
    with pytest.raises(DapoError, match=f"{name}: no such file"):
        load_policy(run_dir, checkpoint)


def test_a_missing_tokenizer_is_named_where_transformers_would_make_an_empty_one(run):
    run_dir, checkpoint, _ = run
    (run_dir / "model" / "tokenizer.json").unlink()
    with pytest.raises(DapoError, match=r"model: no tokenizer \(tokenizer\.json"):
        load_policy(run_dir, checkpoint)


def test_a_sharded_checkpoint_is_the_same_model(run):
    run_dir, checkpoint, model = run
    (checkpoint / "model.safetensors").unlink()
    save_sharded(checkpoint, model, torch.optim.AdamW(model.parameters()))
    loaded, _ = load_policy(run_dir, checkpoint)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert loaded.lm_head.weight.shape == model.lm_head.weight.shape


def test_the_weights_hash_follows_the_weights_not_the_place(run, tmp_path):
    _, checkpoint, model = run
    other = tmp_path / "copy"
    other.mkdir()
    save_model(model, str(other / "model.safetensors"))
    assert weights_hash(other) == weights_hash(checkpoint)
    changed = copy.deepcopy(model)
    changed.model.norm.weight.data[0] += 1e-6
    save_model(changed, str(other / "model.safetensors"))
    assert weights_hash(other) != weights_hash(checkpoint)
    (other / "model.safetensors").unlink()
    with pytest.raises(DapoError, match=r"no \.safetensors file"):
        weights_hash(other)
