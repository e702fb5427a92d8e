"""What was trained, converted, is what was trained, tensor for tensor: one process or ranks, tied or untied, LoRA."""

import pytest
import torch
from own_runs import LORA, checkpoint_folder, checkpoint_of, give_effect, make_run, save_on_ranks
from ranks import start
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dapo_cli.export.command import convert_run
from dapo_cli.policy.lora import add_adapters, merge_adapters
from dapo_cli.policy.model import load_model
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.schema import Lora

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]
NAMES = ("llama", "qwen2_tied", "lora_llama", "lora_qwen2_tied")


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda count: f"{count} ranks")
def saved(request, models, tmp_path_factory):
    """A folder with the models, and what that many ranks saved of each."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, model in models.items():
        model.save_pretrained(folder / name)
    start(request.param, save_on_ranks, folder, NAMES)
    return folder


def expected_of(folder, name):
    """The model that was trained, plain, float32; adapters merged by the layers themselves."""
    base = folder / name.removeprefix("lora_")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if name.startswith("lora_"):
        add_adapters(model, Lora.model_validate(LORA, strict=False), 0, "float32")
        give_effect(model)
        # The start of A depends on the seed of the recipe that trained it, so it is taken from the checkpoint.
        from dapo_cli.export.trained_weights import read_all, trained_tensors
        from dapo_cli.policy.lora import load_trained_tensors

        load_trained_tensors(model, read_all(trained_tensors(folder / f"{name}.saved")))
        merge_adapters(model)
    return model.state_dict()


def assert_same_folder(folder, expected, tied):
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    found = loaded.state_dict()
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) == (not tied)


@pytest.mark.parametrize("name", NAMES)
def test_what_ranks_saved_is_converted_tensor_for_tensor(saved, tokenizer, tmp_path, name):
    model = {"lora": LORA} if name.startswith("lora_") else {}
    run = make_run(tmp_path / "run", saved / name.removeprefix("lora_"), tokenizer, **model)
    checkpoint_folder(run, saved / f"{name}.saved")
    folder = convert_run(str(run.path), tmp_path / "out", "float32", print)
    assert_same_folder(folder, expected_of(saved, name), "tied" in name)


@pytest.mark.parametrize("family", ["llama", "qwen2_tied"])
def test_there_and_back_changes_nothing(models, tokenizer, tmp_path, family):
    models[family].save_pretrained(tmp_path / "base")
    run = make_run(tmp_path / "run", tmp_path / "base", tokenizer)
    checkpoint_of(run, models[family])
    first = convert_run(str(run.path), tmp_path / "first", "float32", print)
    assert_same_folder(first, models[family].state_dict(), "tied" in family)
    # The folder is a model that can be trained and converted again.
    again = make_run(tmp_path / "again", first, tokenizer)
    model = load_recipe(again.recipe_file).recipe.model
    checkpoint_of(again, load_model(str(first), model, torch.device("cpu")))
    second = convert_run(f"{again.path}@3", tmp_path / "second", "float32", print)
    for file in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
