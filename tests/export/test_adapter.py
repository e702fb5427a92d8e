"""LoRA runs: exported as the model that was trained, merged or as an adapter for peft."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_recipe
from transformers import AutoModelForCausalLM

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.export import adapter
from dapo_cli.export.adapter import export_adapter
from dapo_cli.export.comparison import probe_logprobs
from dapo_cli.export.policy_folder import load_policy
from dapo_cli.export.trained_weights import load_adapted, policy_tensors
from dapo_cli.policy.lora import add_adapters, trained_tensors
from dapo_cli.policy.sharded_checkpoint import save_sharded
from dapo_cli.recipe.dump import to_yaml
from dapo_cli.recipe.schema import Lora
from dapo_cli.run.base_model import model_identity
from dapo_cli.run.directory import RunDirectory

LORA = {"rank": 2, "alpha": 6.0, "targets": ["q_proj", "down_proj"]}


def make_run(path, base, **model):
    recipe = tiny_recipe(model={"path": str(base), "lora": LORA} | model)
    return RunDirectory.create(path, to_yaml(recipe), {"model": {"path": str(base), **model_identity(str(base), None)}})


@pytest.fixture(params=["llama", "qwen2_tied"])
def trained(request, models, tokenizer, tmp_path):
    """A LoRA run's directory, its checkpoint, and its policy; the dtype of the frozen weights is bfloat16 for one."""
    plain = models[request.param]
    dtype = "bfloat16" if request.param == "llama" else "float32"
    base = tmp_path / "base"
    plain.save_pretrained(base)
    run = make_run(tmp_path / "run", base, dtype=dtype, activation_checkpointing=True)
    plain.config.save_pretrained(run.path / "model")
    tokenizer.save_pretrained(run.path / "model")
    checkpoint = run.checkpoints / "step_3"
    checkpoint.mkdir(parents=True)
    policy = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    add_adapters(policy, Lora.model_validate(LORA, strict=False), 0, dtype)
    for name, tensor in trained_tensors(policy).items():
        if "lora_B" in name:
            tensor.copy_(torch.linspace(-0.3, 0.3, tensor.numel()).reshape(tensor.shape))
    save_file(trained_tensors(policy), checkpoint / "model.safetensors")
    return run, checkpoint, policy.float()


def test_the_loaded_policy_is_the_one_that_was_trained_merged(trained, models):
    run, checkpoint, policy = trained
    model, _ = load_policy(run.path, checkpoint)
    model.set_attn_implementation("eager")
    assert (probe_logprobs(model) - probe_logprobs(policy)).abs().max() < 1e-5
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training
    tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    layer = model.model.layers[1].self_attn.q_proj
    kind = "qwen2_tied" if tied else "llama"
    assert (layer.weight - models[kind].model.layers[1].self_attn.q_proj.weight).abs().max() > 0.01
    assert type(layer) is torch.nn.Linear


def test_a_sharded_checkpoint_of_adapters_is_the_same(trained):
    run, checkpoint, _ = trained
    expected = load_policy(run.path, checkpoint)[0].state_dict()
    policy = load_adapted(run, checkpoint).policy
    (checkpoint / "model.safetensors").unlink()
    save_sharded(checkpoint, policy, torch.optim.AdamW(trained_tensors(policy).values()))
    found = load_policy(run.path, checkpoint)[0].state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_tensors_read_one_by_one_are_the_merged_policy(trained):
    run, checkpoint, _ = trained
    expected = load_policy(run.path, checkpoint)[0].state_dict()
    found = policy_tensors(run, checkpoint)
    assert {*expected} - {*found} <= {"lm_head.weight"}  # tied
    assert {name: tensor.shape for name, tensor in found.items()} == {n: tuple(expected[n].shape) for n in found}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.read(), expected[name], rtol=0, atol=1e-7)


def test_a_base_model_without_an_adapted_layer_is_refused(trained):
    run, checkpoint, _ = trained
    state = load_file(checkpoint / "model.safetensors")
    renamed = {name.replace("layers.1", "layers.7"): tensor for name, tensor in state.items()}
    save_file(renamed, checkpoint / "model.safetensors")
    with pytest.raises(VerificationError, match=r"no model\.layers\.7\.\S+\.weight, which the adapters"):
        policy_tensors(run, checkpoint)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_adapter_folder_gives_the_policy_in_peft(trained, tmp_path, dtype):
    from peft import PeftModel

    run, checkpoint, policy = trained
    folder = export_adapter(load_adapted(run, checkpoint), tmp_path / "out", dtype, {"step": 3})
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert {tensor.dtype for tensor in load_file(folder / "adapter_model.safetensors").values()} == {
        getattr(torch, dtype)
    }
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 6.0)
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], attn_implementation="eager")
    for parameter in base.parameters():
        parameter.data = parameter.data.to(getattr(torch, frozen_dtype(run))).float()
    loaded = PeftModel.from_pretrained(base, str(folder))
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    assert (probe_logprobs(loaded) - probe_logprobs(policy)).abs().max() < tolerance
    card = (folder / "README.md").read_text()
    assert "library_name: peft" in card
    assert f"- dtype: {dtype}" in card


def frozen_dtype(run):
    from dapo_cli.recipe.loading import load_recipe

    return load_recipe(run.recipe_file).recipe.model.dtype


def change_scale(folder):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "lora_alpha": 12}))


def change_values(folder):
    state = load_file(folder / "adapter_model.safetensors")
    next(tensor for name, tensor in state.items() if "lora_B" in name).mul_(1.5)
    save_file(state, folder / "adapter_model.safetensors")


def drop_a_tensor(folder):
    state = load_file(folder / "adapter_model.safetensors")
    del state[next(name for name in state if "lora_A" in name)]
    save_file(state, folder / "adapter_model.safetensors")


def tear(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"torn")


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_scale, "log-probs of a fixed prompt are off by"),
        (change_values, r"lora_B\.weight: other values"),
        (drop_a_tensor, r"lora_A\.weight: other values"),
        (tear, "cannot be loaded"),
    ],
)
def test_a_corrupted_adapter_is_found_and_leaves_nothing(trained, tmp_path, monkeypatch, change, message):
    run, checkpoint, _ = trained
    verify = adapter._differences

    def change_and_verify(policy, state, folder):
        change(folder)
        return verify(policy, state, folder)

    monkeypatch.setattr(adapter, "_differences", change_and_verify)
    with pytest.raises(VerificationError, match=message):
        export_adapter(load_adapted(run, checkpoint), tmp_path / "out", "float32", {})
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


@pytest.mark.parametrize("trained", ["llama"], indirect=True)
def test_what_cannot_be_exported_says_why(trained, tmp_path):
    run, checkpoint, _ = trained
    state = load_file(checkpoint / "model.safetensors")
    name = next(iter(state))
    state[name][0, 0] = float("nan")
    save_file(state, checkpoint / "model.safetensors")
    with pytest.raises(VerificationError, match=r"not finite in float32: base_model\.model\.model"):
        export_adapter(load_adapted(run, checkpoint), tmp_path / "out", "float32", {})
    del state[name]
    save_file(state, checkpoint / "model.safetensors")
    with pytest.raises(VerificationError, match=rf"not the adapters of this run's recipe: .*{name}"):
        load_policy(run.path, checkpoint)


def test_a_run_of_all_weights_has_no_adapter(models, tmp_path):
    models["llama"].save_pretrained(tmp_path / "base")
    run = make_run(tmp_path / "run", tmp_path / "base", lora=None)
    with pytest.raises(UsageError, match="all weights were trained: there is no adapter"):
        load_adapted(run, run.checkpoints / "step_3")
