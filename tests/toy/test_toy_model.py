import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo_cli.toy import model as toy_model
from dapo_cli.toy import warm_start


@pytest.fixture
def _few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(warm_start.SETTINGS, "worked_updates", 2)
    monkeypatch.setitem(warm_start.SETTINGS, "careless_updates", 1)
    monkeypatch.setattr(warm_start, "SAMPLES_PER_PROBLEM", 1)
    monkeypatch.setattr(warm_start, "MAX_RESPONSE_TOKENS", 4)


def test_a_new_model_depends_on_the_seed_alone_and_leaves_the_random_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, _ = toy_model.new_toy_model(1)
    again, _ = toy_model.new_toy_model(1)
    other, _ = toy_model.new_toy_model(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_the_model_is_small_and_its_embeddings_are_untied() -> None:
    model, tokenizer = toy_model.new_toy_model(0)
    # Embedding and head 2 x 113 x 64 = 14464. A layer: q, o 2 x 64 x 64, k, v 2 x 64 x 32, mlp 3 x 64 x 128, two norms
    # of 64: 36992. Last norm 64. In all 14464 + 2 x 36992 + 64 = 88512.
    assert sum(parameter.numel() for parameter in model.parameters()) == 88512
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id]


@pytest.mark.usefixtures("_few_updates")
def test_making_it_is_deterministic_cached_and_loads_in_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    first = toy_model.toy_model_folder(tmp_path / "a")
    assert "making the toy model" in capsys.readouterr().out
    torch.manual_seed(2)
    second = toy_model.toy_model_folder(tmp_path / "b")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert json.loads((first / "toy.json").read_text()) == json.loads((second / "toy.json").read_text())
    assert first.name == second.name
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name]
    capsys.readouterr()
    assert toy_model.toy_model_folder(tmp_path / "a") == first
    assert capsys.readouterr().out == ""
    model = AutoModelForCausalLM.from_pretrained(first)
    assert model.generation_config.eos_token_id == [AutoTokenizer.from_pretrained(first).eos_token_id]


def test_other_settings_are_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    name = toy_model.toy_model_name()
    assert toy_model.toy_model_name() == name
    monkeypatch.setitem(warm_start.SETTINGS, "seed", 1)
    assert toy_model.toy_model_name() != name


def test_the_loss_is_on_the_answer_and_its_end_only() -> None:
    _, tokenizer = toy_model.new_toy_model(0)
    token_ids, labels = warm_start._batch(tokenizer, [[9, 8, 7], [9, 8]], ["Answer: 7", "7"])
    answer = tokenizer("Answer: 7").input_ids
    seven = tokenizer("7").input_ids
    assert token_ids.tolist() == [[9, 8, 7, *answer, 2], [9, 8, *seven, 2, 0, 0, 0, 0]]
    assert labels.tolist() == [[-100] * 3 + [*answer, 2], [-100] * 2 + [*seven, 2] + [-100] * 4]


@pytest.mark.slow
def test_the_warm_started_model_is_right_a_third_of_the_time(tmp_path: Path) -> None:
    record = json.loads((toy_model.toy_model_folder(tmp_path) / "toy.json").read_text())
    low, high = record["target_accuracy"]
    assert list(record["heldout_accuracy"]) == ["top_p 1.0", "top_p 0.7"]
    assert all(low <= share <= high for share in record["heldout_accuracy"].values())
