"""verl's checkpoints become the models that were saved, tensor for tensor."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM
from verl_saves import SAVES, actor, write

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.export import lazy_tensors, safetensors_files, streamed_folder
from dapo_cli.export.command import Conversion
from dapo_cli.export.verl import convert_verl


def convert(path, tmp_path, dtype="float32", **options):
    notes = []
    folder = convert_verl(path, tmp_path / "out", dtype, notes.append, **options)
    return folder, notes


def assert_equal_states(folder, model, dtype=torch.float32):
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    expected = model.state_dict()
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor.to(dtype)), name


def left_over(tmp_path):
    return [path.name for path in tmp_path.iterdir() if "out" in path.name]


@pytest.mark.parametrize("name", SAVES)
def test_the_converted_model_is_the_one_that_was_saved(verl_root, models, tmp_path, name):
    model = models[SAVES[name][0]]
    folder, _ = convert(verl_root / name, tmp_path)
    assert_equal_states(folder, model)
    stored = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in stored) == (not model.config.tie_word_embeddings)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert left_over(tmp_path) == ["out"]


def test_the_folder_says_what_it_is(verl_root, tokenizer, tmp_path):
    folder, notes = convert(verl_root / "fsdp2_hybrid", tmp_path)
    assert json.loads((folder / "generation_config.json").read_text())["top_k"] == 20
    assert AutoTokenizer.from_pretrained(folder).chat_template == tokenizer.chat_template
    card = (folder / "README.md").read_text()
    assert "Converted from a checkpoint of verl" in card
    assert "Trained with" not in card
    assert "- step: 7" in card
    manifest = json.loads((folder / "dapo_manifest.json").read_text())
    checked = manifest["verification"]
    assert (checked["mode"], checked["tensors"], checked["equal"], checked["logprobs"]) == ("full", 26, True, "equal")
    assert manifest["step"] == 7
    assert manifest["files_bytes"]["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    assert any("2 replicas of 2 parts each; the first is read" in note for note in notes)


@pytest.mark.parametrize("inside", ["", "global_step_7", "global_step_7/actor"])
@pytest.mark.parametrize("with_config", [True, False])
def test_every_folder_of_a_run_may_be_named(verl_copy, models, tmp_path, inside, with_config):
    folder = verl_copy("fsdp2_2")
    if not with_config:
        (folder / "fsdp_config.json").unlink()
    out, _ = convert(folder.parent.parent / inside, tmp_path, verify="tensors")
    assert_equal_states(out, models["llama"])
    assert json.loads((out / "dapo_manifest.json").read_text())["step"] == 7


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_precision_is_the_rounded_weights(verl_root, models, tmp_path, dtype):
    folder, _ = convert(verl_root / "fsdp1_2_tied", tmp_path, dtype)
    assert_equal_states(folder, models["qwen2_tied"], getattr(torch, dtype))
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype


def test_several_files_have_an_index(verl_root, models, tmp_path, monkeypatch):
    monkeypatch.setattr(streamed_folder, "MAX_FILE_BYTES", 20_000)
    folder, _ = convert(verl_root / "fsdp2_4", tmp_path)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert len(sizes) > 1
    assert max(sizes) < 20_000 + 4096  # the header comes on top
    assert_equal_states(folder, models["llama"])


@pytest.mark.parametrize("accelerate", [True, False])
def test_experts_saved_one_by_one_are_loaded_as_they_were(tokenizer, tmp_path, monkeypatch, accelerate):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=4,
        num_experts_per_tok=2,
        head_dim=8,
    )
    model = Qwen3MoeForCausalLM(config)
    model.save_pretrained(tmp_path / "hub")
    folder = actor(tmp_path, "moe")
    write(load_file(tmp_path / "hub" / "model.safetensors"), folder, 0, 1)
    model.config.save_pretrained(folder / "huggingface")
    tokenizer.save_pretrained(folder / "huggingface")
    if accelerate:
        assert_equal_states(convert(folder, tmp_path)[0], model)
    else:
        without_accelerate(monkeypatch)
        with pytest.raises(
            VerificationError, match=r"unexpected: model\.layers\.0\.mlp\.experts\.0\.down_proj"
        ) as caught:
            convert(folder, tmp_path)
        assert "pip install accelerate" in caught.value.hint


def without_accelerate(monkeypatch):
    monkeypatch.setattr(lazy_tensors.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("name", ["fsdp2_2", "fsdp2_2_tied"])
def test_no_further_package_is_needed(verl_root, models, tmp_path, monkeypatch, name):
    without_accelerate(monkeypatch)
    assert_equal_states(convert(verl_root / name, tmp_path)[0], models[SAVES[name][0]])


@pytest.mark.parametrize("accelerate", [True, False])
def test_weights_of_another_model_are_all_named(verl_copy, tmp_path, monkeypatch, accelerate):
    if not accelerate:
        without_accelerate(monkeypatch)
    folder = verl_copy("fsdp1_one_gpu")
    file = folder / "model_world_size_1_rank_0.pt"
    state = torch.load(file)
    del state["model.layers.0.self_attn.q_proj.weight"]
    state |= {"model.norm.weight": torch.ones(3), "extra": torch.ones(1)}
    torch.save(state, file)
    with pytest.raises(VerificationError) as caught:
        convert(folder, tmp_path)
    for line in (
        "missing: model.layers.0.self_attn.q_proj.weight",
        "unexpected: extra",
        "model.norm.weight: shape (3,), the model has (16,)",
    ):
        assert line in caught.value.message
    assert left_over(tmp_path) == []


def test_a_tied_head_that_differs_is_refused(verl_copy, tmp_path):
    folder = verl_copy("fsdp1_one_gpu_tied")
    file = folder / "model_world_size_1_rank_0.pt"
    state = torch.load(file)
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    torch.save(state, file)
    with pytest.raises(VerificationError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        convert(folder, tmp_path)
    del state["model.embed_tokens.weight"]
    torch.save(state, file)
    stored = load_file(convert(folder, tmp_path)[0] / "model.safetensors")
    assert torch.equal(stored["model.embed_tokens.weight"], state["lm_head.weight"])


@pytest.mark.parametrize("value", [1e30, float("nan"), float("-inf")])
def test_values_that_are_not_finite_are_refused(verl_copy, tmp_path, value):
    folder = verl_copy("fsdp1_one_gpu")
    file = folder / "model_world_size_1_rank_0.pt"
    state = torch.load(file)
    state["model.norm.weight"] = state["model.norm.weight"].clone()
    state["model.norm.weight"][3] = value
    torch.save(state, file)
    with pytest.raises(VerificationError, match=r"not finite in float16: model\.norm\.weight"):
        convert(folder, tmp_path, "float16")
    assert left_over(tmp_path) == []


def change_value(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("change", "message"), [(change_value, "other values after loading"), (cut, "cannot be loaded")]
)
@pytest.mark.parametrize("verify", ["tensors", "full"])
def test_a_corrupted_write_is_found_and_leaves_nothing(verl_root, tmp_path, monkeypatch, change, message, verify):
    write_files = safetensors_files.write_safetensors

    def write_and_change(tensors, folder, *others):
        write_files(tensors, folder, *others)
        change(folder)

    monkeypatch.setattr(safetensors_files, "write_safetensors", write_and_change)
    with pytest.raises(VerificationError, match=message) as caught:
        convert(verl_root / "fsdp2_2", tmp_path, verify=verify)
    assert caught.value.exit_code == 3
    assert left_over(tmp_path) == []


def test_a_config_that_says_another_model_is_found_by_its_logprobs(verl_root, tmp_path, monkeypatch):
    from dapo_cli.export.description import Described

    write_description = Described.write

    def write_other(self, folder, dtype):
        write_description(self, folder, dtype)
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 0.5}))

    monkeypatch.setattr(Described, "write", write_other)
    with pytest.raises(VerificationError, match="log-probs of a fixed prompt are off by"):
        convert(verl_root / "fsdp2_2", tmp_path)


def test_too_little_memory_leaves_out_logprobs_and_says_so(verl_root, tmp_path, monkeypatch):
    monkeypatch.setattr(streamed_folder, "available_bytes", lambda: 1000)
    folder, notes = convert(verl_root / "fsdp2_2", tmp_path)
    assert any("log-probs are not; --verify full" in note for note in notes)
    assert json.loads((folder / "dapo_manifest.json").read_text())["verification"]["mode"] == "tensors"


KILLED = """
import os, pathlib, signal, sys
from dapo_cli.export import safetensors_files
from dapo_cli.export.verl import convert_verl

write = safetensors_files.write_safetensors

def write_and_die(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

safetensors_files.write_safetensors = write_and_die
convert_verl(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), "float32", print)
"""


def test_a_killed_conversion_leaves_no_folder_and_the_next_one_is_whole(verl_root, models, tmp_path):
    arguments = [sys.executable, "-c", KILLED, str(verl_root / "fsdp2_2"), str(tmp_path / "out")]
    assert subprocess.run(arguments, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert left_over(tmp_path) == [".out.partial"]
    assert_equal_states(convert(verl_root / "fsdp2_2", tmp_path)[0], models["llama"])
    assert left_over(tmp_path) == ["out"]


def test_an_existing_folder_is_not_touched(verl_root, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        convert(verl_root / "fsdp2_2", tmp_path)
    assert (tmp_path / "out" / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"foreign": "nemo"}, "--from: must be verl, got 'nemo'"),
        ({"foreign": "verl", "adapter": True}, "--adapter is for runs of ours"),
        ({"lora_alpha": 3.0}, "--lora-alpha is for --from verl"),
        ({"verify": "full", "adapter": True}, "--verify is for whole models"),
        ({"foreign": "verl", "verify": "some"}, "--verify: must be one of tensors, full, got 'some'"),
        ({"foreign": "verl", "lora_alpha": 3.0}, "--lora-alpha: there are no adapters"),
        ({"foreign": "verl", "dtype": "int8"}, "--dtype: must be one of"),
    ],
)
def test_options_that_mean_nothing_are_refused(verl_root, tmp_path, options, message):
    values = {"dtype": "float32", "adapter": False, **options}
    conversion = Conversion(str(verl_root / "fsdp2_2"), tmp_path / "out", **values)
    with pytest.raises(UsageError, match=message):
        conversion.run(lambda note: None)
    assert left_over(tmp_path) == []


def test_the_command_that_comes_next_names_the_folder(verl_root, tmp_path):
    conversion = Conversion(str(verl_root / "fsdp2_2"), tmp_path / "out", "float32", foreign="verl")
    folder = conversion.run(lambda note: None)
    assert conversion.following(folder) == f"eval RECIPE --model {folder}"
