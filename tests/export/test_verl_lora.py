"""Adapters of verl are merged with the alpha that they were trained with, or not at all."""

import copy
import json

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_saves import LORA, LORA_SAVES, with_adapters

from dapo_cli.errors import UsageError
from dapo_cli.export.verl import convert_verl


def merged(models, name):
    return with_adapters(copy.deepcopy(models[LORA_SAVES[name][0]])).merge_and_unload().state_dict()


def convert(folder, tmp_path, **options):
    notes = []
    out = convert_verl(folder, tmp_path / "out", "float32", notes.append, **options)
    return AutoModelForCausalLM.from_pretrained(out, dtype="auto"), notes


def record(folder, where="lora_train_meta.json", **changes):
    path = folder / where
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"r": LORA["r"], "lora_alpha": LORA["lora_alpha"], **changes}))


@pytest.mark.parametrize("name", LORA_SAVES)
def test_the_merged_model_is_that_of_peft(verl_copy, models, tmp_path, name):
    folder = verl_copy(name)
    record(folder)
    model, notes = convert(folder, tmp_path)
    loaded, expected = model.state_dict(), merged(models, name)
    assert loaded.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.allclose(loaded[key], tensor, rtol=0, atol=1e-7), key
    plain = models[LORA_SAVES[name][0]].state_dict()
    changed = {key.split(".")[-2] for key, tensor in loaded.items() if not torch.equal(tensor, plain[key])}
    assert changed == set(LORA["target_modules"])
    assert "adapters added: rank 2, alpha 6 (actor/lora_train_meta.json), 4 layers" in notes


@pytest.mark.parametrize(
    "where",
    ["lora_train_meta.json", "lora_adapter/adapter_config.json", "adapter_config.json", "../lora_train_meta.json"],
)
def test_alpha_is_read_from_wherever_training_wrote_it(verl_copy, tmp_path, where):
    folder = verl_copy("lora_one_gpu")
    record(folder, where)
    _, notes = convert(folder, tmp_path)
    assert any("alpha 6 (" in note for note in notes)


@pytest.mark.parametrize("written", [None, 0])
def test_an_alpha_that_nobody_says_is_demanded(verl_copy, models, tmp_path, written):
    folder = verl_copy("lora_one_gpu")
    if written is not None:
        record(folder, "lora_adapter/adapter_config.json", lora_alpha=written)
    with pytest.raises(UsageError, match="nothing says the alpha") as caught:
        convert(folder, tmp_path)
    assert "--lora-alpha N; the rank is 2" in caught.value.hint
    assert not (tmp_path / "out").exists()
    model, _ = convert(folder, tmp_path, lora_alpha=6.0)
    expected = merged(models, "lora_one_gpu")
    assert all(torch.allclose(tensor, expected[key], rtol=0, atol=1e-7) for key, tensor in model.state_dict().items())


def test_two_alphas_are_refused(verl_copy, tmp_path):
    folder = verl_copy("lora_one_gpu")
    record(folder)
    with pytest.raises(UsageError, match=r"alpha is 6 by actor/lora_train_meta\.json, but 12 by --lora-alpha"):
        convert(folder, tmp_path, lora_alpha=12.0)
    record(folder, "lora_adapter/adapter_config.json", lora_alpha=3)
    with pytest.raises(UsageError, match=r"alpha is 6 by .* but 3 by"):
        convert(folder, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora is True: adapters of this kind are not merged"),
        ({"use_rslora": True}, "use_rslora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias is all"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
        ({"r": 8}, "rank 8, but the adapters in the checkpoint are of rank 2"),
    ],
)
def test_adapters_of_other_kinds_are_refused_by_name(verl_copy, tmp_path, changes, message):
    folder = verl_copy("lora_one_gpu")
    record(folder, "lora_adapter/adapter_config.json", **changes)
    with pytest.raises(UsageError, match=message):
        convert(folder, tmp_path)


def drop_base(state):
    for name in [name for name in state if "lora_" not in name]:
        del state[name]


def drop_half(state):
    del state[next(name for name in state if "lora_A" in name)]


def add(name):
    return lambda state: state.update({name: torch.ones(2)})


def widen(state):
    name = next(name for name in state if "lora_A" in name)
    state[name] = torch.ones(3, state[name].shape[1])


def shorten(state):
    name = next(name for name in state if "lora_B" in name)
    state[name] = state[name][:-1].clone()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_base, r"adapters without the weights they were trained beside \(model\.layers\.0"),
        (drop_half, "only one half of the adapter"),
        (add("base_model.model.x.lora_magnitude_vector.default.weight"), "lora_magnitude_vector.*a kind that is not"),
        (add("base_model.model.lm_head.modules_to_save.default.weight"), "modules_to_save"),
        (add("base_model.model.x.lora_A.other.weight"), r"lora_A\.other"),
        (widen, r"adapters of different ranks \(2, 3\)"),
        (shorten, "adapter of shapes"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(verl_copy, tmp_path, change, message):
    folder = verl_copy("lora_one_gpu")
    record(folder)
    file = folder / "model_world_size_1_rank_0.pt"
    state = torch.load(file)
    change(state)
    torch.save(state, file)
    with pytest.raises(UsageError, match=message):
        convert(folder, tmp_path)
    assert not (tmp_path / "out").exists()
