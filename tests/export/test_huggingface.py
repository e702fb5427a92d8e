import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.export import huggingface
from dapo_cli.export.huggingface import export_folder
from dapo_cli.policy import attention

PROVENANCE = {"base_model": "toy", "recipe": "demo", "step": 40}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def tampering(monkeypatch, change):
    """Let `change` loose on the folder between writing and verifying."""
    write = huggingface._write

    def write_and_change(expected, generation_config, tokenizer, folder):
        write(expected, generation_config, tokenizer, folder)
        change(folder)

    monkeypatch.setattr(huggingface, "_write", write_and_change)


def change_tensor(change):
    def apply(folder: Path):
        path = folder / "model.safetensors"
        state = load_file(path)
        change(state)
        save_file(state, path, metadata={"format": "pt"})

    return apply


def change_json(name, **values):
    def apply(folder: Path):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return apply


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen2_tied"])
def test_the_folder_loads_as_the_model_that_was_exported(models, tokenizer, tmp_path, family, dtype):
    model = models[family]
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    folder = export_folder(model, tokenizer, tmp_path / "out", dtype, PROVENANCE)
    assert torch.equal(torch.get_rng_state(), random_state)
    loaded = load(folder)
    assert loaded.dtype == getattr(torch, dtype)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(getattr(torch, dtype)))
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == torch.float32
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == (family == "qwen2_tied")
    reloaded_tokenizer = AutoTokenizer.from_pretrained(folder)
    assert reloaded_tokenizer.chat_template == tokenizer.chat_template
    assert reloaded_tokenizer("3 + 4 = 7")["input_ids"] == tokenizer("3 + 4 = 7")["input_ids"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_training_attention_function_is_not_exported(models, tokenizer, tmp_path):
    model = copy.deepcopy(models["llama"])
    attention.register()
    model.set_attn_implementation(attention.NAME)
    config = json.loads((export_folder(model, tokenizer, tmp_path / "out", "float32", {}) / "config.json").read_text())
    assert not [key for key in config if "attn_implementation" in key]
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"


def test_planted_generation_settings_come_out_as_they_went_in(models, tokenizer, tmp_path):
    # transformers itself refuses to save this one: temperature without do_sample
    planted = {"repetition_penalty": 1.1, "top_k": 20, "temperature": 0.6, "eos_token_id": [1, 2]}
    model = copy.deepcopy(models["llama"])
    model.generation_config = GenerationConfig(**planted)
    folder = export_folder(model, tokenizer, tmp_path / "out", "float32", {})
    written = json.loads((folder / "generation_config.json").read_text())
    assert {key: written[key] for key in planted} == planted
    assert set(written) <= {*planted, "transformers_version"}


def test_shards_are_verified_and_loaded(models, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "MAX_SHARD_SIZE", "4KB")
    folder = export_folder(models["llama"], tokenizer, tmp_path / "out", "float32", {})
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert torch.equal(load(folder).lm_head.weight, models["llama"].lm_head.weight)


def test_the_card_names_origin_dtype_and_versions(models, tokenizer, tmp_path):
    card = (
        export_folder(models["llama"], tokenizer, tmp_path / "out", "bfloat16", PROVENANCE) / "README.md"
    ).read_text()
    for line in ("# out", "- base model: toy", "- step: 40", "- dtype: bfloat16", f"- torch: {torch.__version__}"):
        assert line in card.splitlines()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_tensor(lambda s: s["model.norm.weight"].add_(1e-3)), r"model\.norm\.weight: other values"),
        (change_tensor(lambda s: s.pop("model.norm.weight")), r"missing keys: model\.norm\.weight"),
        (change_tensor(lambda s: s.update(extra=torch.ones(1))), "unexpected keys: extra"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), "cannot be loaded"),
        (change_json("config.json", rms_norm_eps=0.5), "log-probs of a fixed prompt are off by"),
        (change_json("generation_config.json", top_k=3), r"generation_config\.json: differs"),
        (lambda folder: (folder / "chat_template.jinja").write_text("hello"), "tokenizer: differs in chat_template"),
    ],
)
def test_a_corrupted_write_is_found_and_leaves_nothing(models, tokenizer, tmp_path, monkeypatch, change, message):
    tampering(monkeypatch, change)
    with pytest.raises(VerificationError, match=message) as caught:
        export_folder(models["llama"], tokenizer, tmp_path / "out", "float32", PROVENANCE)
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_tie_that_is_lost_is_found(models, tokenizer, tmp_path, monkeypatch):
    def untie(folder):
        change_json("config.json", tie_word_embeddings=False)(folder)
        change_tensor(lambda s: s.update({"lm_head.weight": s["model.embed_tokens.weight"].clone()}))(folder)

    tampering(monkeypatch, untie)
    with pytest.raises(VerificationError, match="output head: tied True, loaded as tied False"):
        export_folder(models["qwen2_tied"], tokenizer, tmp_path / "out", "float32", {})


def test_a_tokenizer_that_transformers_would_replace_is_found(models, tmp_path):
    # AutoTokenizer makes every tokenizer of a qwen2 folder a Qwen2Tokenizer, which splits text its own way.
    words = Tokenizer(WordLevel({"<unk>": 0, "7": 1}, unk_token="<unk>"))
    foreign = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    with pytest.raises(VerificationError, match="tokenizer: differs in tokens of a fixed text"):
        export_folder(models["qwen2_tied"], foreign, tmp_path / "out", "float32", {})


def test_a_head_that_left_its_tie_is_refused(models, tokenizer, tmp_path):
    model = copy.deepcopy(models["qwen2_tied"])
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1)
    with pytest.raises(VerificationError, match=r"does not fit its own config: .*: other values"):
        export_folder(model, tokenizer, tmp_path / "out", "float32", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (1e6, "float16")])
def test_values_that_are_not_finite_after_the_cast_are_refused(models, tokenizer, tmp_path, value, dtype):
    model = copy.deepcopy(models["llama"])
    model.model.norm.weight.data[0] = value
    with pytest.raises(VerificationError, match=rf"not finite in {dtype}: model\.norm\.weight"):
        export_folder(model, tokenizer, tmp_path / "out", dtype, {})
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_nothing(models, tokenizer, tmp_path, monkeypatch):
    def interrupt(folder):
        raise KeyboardInterrupt

    tampering(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_folder(models["llama"], tokenizer, tmp_path / "out", "float32", {})
    assert list(tmp_path.iterdir()) == []


def test_destinations_that_hold_something_are_refused_and_left_alone(models, tokenizer, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(UsageError, match=r"--out: .* not an empty folder"):
            export_folder(models["llama"], tokenizer, tmp_path / name, "float32", {})
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_destination_and_missing_parents_are_fine(models, tokenizer, tmp_path):
    (tmp_path / "empty").mkdir()
    for destination in (tmp_path / "empty", tmp_path / "a" / "b"):
        assert (export_folder(models["llama"], tokenizer, destination, "float32", {}) / "config.json").is_file()


def test_unknown_dtypes_are_refused(models, tokenizer, tmp_path):
    with pytest.raises(UsageError, match="--dtype: must be one of float32, bfloat16, float16, got 'int8'"):
        export_folder(models["llama"], tokenizer, tmp_path / "out", "int8", {})
