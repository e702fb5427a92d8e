"""The exported folder of a run of ours: what is in it, and what keeps it from being kept."""

import json
from pathlib import Path

import pytest
import torch
from own_runs import GENERATION_CONFIG, checkpoint_of, make_run
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from dapo_cli.errors import DapoError, UsageError, VerificationError
from dapo_cli.export import safetensors_files, streamed_folder, vllm_check
from dapo_cli.export.command import convert_run
from dapo_cli.export.description import Described


@pytest.fixture
def run_of(models, tokenizer, tmp_path):
    """Makes a run with one checkpoint of a family's model."""

    def make(family, described_by=tokenizer):
        models[family].save_pretrained(tmp_path / "work" / "base")
        run = make_run(tmp_path / "work" / "run", tmp_path / "work" / "base", described_by)
        return run, checkpoint_of(run, models[family])

    return make


def convert(run, tmp_path, dtype="float32", **options):
    notes = []
    return convert_run(str(run.path), tmp_path / "out", dtype, notes.append, **options), notes


def tampering(monkeypatch, change):
    """Let `change` loose on the folder between writing and verifying."""
    write = Described.write

    def write_and_change(self, folder, dtype):
        write(self, folder, dtype)
        change(folder)

    monkeypatch.setattr(Described, "write", write_and_change)


def change_tensors(change):
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


def test_the_folder_says_where_it_comes_from(run_of, tmp_path):
    run, _ = run_of("llama")
    folder, notes = convert(run, tmp_path, "bfloat16")
    card = (folder / "README.md").read_text()
    for line in (
        "# out",
        "- step: 3",
        "- dtype: bfloat16",
        f"- torch: {torch.__version__}",
        "- data: train abababababab",
    ):
        assert line in card.splitlines()
    assert (folder / "dapo_recipe.yaml").read_text() == run.recipe_file.read_text()
    manifest = json.loads((folder / "dapo_manifest.json").read_text())
    assert (manifest["step"], manifest["run"], manifest["dtype"]) == (3, "run", "bfloat16")
    assert manifest["verification"] == {
        "mode": "full",
        "tensors": 21,
        "equal": True,
        "logprobs": "equal",
        "vllm": manifest["verification"]["vllm"],
    }
    assert manifest["files_bytes"]["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    written = json.loads((folder / "generation_config.json").read_text())
    assert {key: written[key] for key in GENERATION_CONFIG} == GENERATION_CONFIG
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert any(note.startswith("converting ") for note in notes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_rounded_once(run_of, models, tmp_path, dtype):
    run, _ = run_of("qwen2_tied")
    loaded = AutoModelForCausalLM.from_pretrained(convert(run, tmp_path, dtype)[0], dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    for name, tensor in models["qwen2_tied"].state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(loaded.dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_tensors(lambda s: s["model.norm.weight"].add_(1e-3)), r"model\.norm\.weight: other values"),
        (change_tensors(lambda s: s.pop("model.norm.weight")), r"model\.norm\.weight: only in the source"),
        (change_tensors(lambda s: s.update(extra=torch.ones(1))), "extra: only in the files"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), "cannot be loaded"),
        (change_json("config.json", rms_norm_eps=0.5), "log-probs of a fixed prompt are off by"),
        (change_json("config.json", tie_word_embeddings=False), "output head: tied True, loaded as tied False"),
        (change_json("generation_config.json", top_k=3), r"generation_config\.json: differs"),
        (lambda folder: (folder / "chat_template.jinja").write_text("hello"), "tokenizer: differs in chat_template"),
    ],
)
def test_a_corrupted_write_is_found_and_leaves_nothing(run_of, tmp_path, monkeypatch, change, message):
    run, _ = run_of("qwen2_tied")
    tampering(monkeypatch, change)
    with pytest.raises(VerificationError, match=message) as caught:
        convert(run, tmp_path)
    assert caught.value.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_a_tokenizer_that_transformers_would_replace_is_found(run_of, tmp_path, monkeypatch):
    # AutoTokenizer makes every tokenizer of a qwen2 folder a Qwen2Tokenizer, which splits text its own way.
    words = Tokenizer(WordLevel({"<unk>": 0, "7": 1}, unk_token="<unk>"))
    foreign = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    run, _ = run_of("qwen2_tied")
    monkeypatch.setattr("dapo_cli.export.description.read_tokenizer", lambda folder: foreign)
    with pytest.raises(VerificationError, match="tokenizer: differs in tokens of a fixed text"):
        convert(run, tmp_path)


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (1e6, "float16")])
def test_values_that_are_not_finite_after_the_cast_are_refused(models, tokenizer, tmp_path, value, dtype):
    import copy

    model = copy.deepcopy(models["llama"])
    model.model.norm.weight.data[0] = value
    model.save_pretrained(tmp_path / "work" / "base")
    run = make_run(tmp_path / "work" / "run", tmp_path / "work" / "base", tokenizer)
    checkpoint_of(run, model)
    with pytest.raises(VerificationError, match=rf"not finite in {dtype}: model\.norm\.weight"):
        convert(run, tmp_path, dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def flip_a_byte(run, checkpoint):
    path = checkpoint / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_byte, r"model\.safetensors has changed since it was saved"),
        (lambda run, checkpoint: (checkpoint / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda run, checkpoint: (run.path / "model" / "tokenizer.json").unlink(), r"model: no tokenizer \(tokenizer"),
        (lambda run, checkpoint: (run.path / "model" / "config.json").unlink(), r"model/config\.json: no such file"),
    ],
)
def test_what_is_damaged_or_missing_is_named(run_of, tmp_path, damage, message):
    run, checkpoint = run_of("llama")
    damage(run, checkpoint)
    with pytest.raises(DapoError, match=message):
        convert_run(f"{run.path}@3", tmp_path / "out", "float32", print)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_weights_of_another_model_are_named(run_of, models, tmp_path):
    run, _ = run_of("llama")
    change_json("config.json", num_hidden_layers=3)(run.path / "model")
    with pytest.raises(VerificationError, match=r"missing: model\.layers\.2\.") as caught:
        convert(run, tmp_path)
    assert str(run.path) in caught.value.message


def test_vllm_is_asked_where_it_can_be(run_of, tmp_path, monkeypatch):
    run, _ = run_of("llama")
    asked = []
    monkeypatch.setattr(vllm_check, "reason_not_to_ask", lambda folder, config: None)

    def differ(folder, config, dtype, expected):
        asked.append((dtype, expected.shape))
        raise VerificationError("vLLM cannot load it: why")

    monkeypatch.setattr(vllm_check, "vllm_difference", differ)
    with pytest.raises(VerificationError, match="vLLM cannot load it: why"):
        convert(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert asked == [("float32", (16, 260))]
    folder, _ = convert(run, tmp_path, verify="tensors")
    assert json.loads((folder / "dapo_manifest.json").read_text())["verification"] == {
        "mode": "tensors",
        "tensors": 21,
        "equal": True,
    }
    assert len(asked) == 1


def test_memory_stays_near_the_largest_tensor(run_of, tmp_path, monkeypatch):
    run, _ = run_of("llama")
    alive, most = [0], [0]
    write = safetensors_files._write_values

    def counting(file, name, tensor):
        values = tensor.read()
        alive[0] += values.nbytes
        most[0] = max(most[0], alive[0])
        write(file, name, tensor)
        alive[0] -= values.nbytes

    monkeypatch.setattr(safetensors_files, "_write_values", counting)
    monkeypatch.setattr(streamed_folder, "MAX_FILE_BYTES", 20_000)
    folder, _ = convert(run, tmp_path, verify="tensors")
    assert most[0] == 260 * 16 * 4
    assert len(list(folder.glob("*.safetensors"))) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "--dtype: must be one of float32, bfloat16, float16, got 'int8'"),
        ({"verify": "some"}, "--verify: must be one of tensors, full, got 'some'"),
    ],
)
def test_unknown_choices_are_refused(run_of, tmp_path, options, message):
    run, _ = run_of("llama")
    with pytest.raises(UsageError, match=message):
        convert(run, tmp_path, **options)
