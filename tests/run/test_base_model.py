"""A LoRA run means nothing beside another base model, and a fork cannot change what its checkpoint is."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_policy, tiny_recipe

from dapo_cli.errors import UsageError
from dapo_cli.recipe.dump import to_yaml
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.run import base_model
from dapo_cli.run.base_model import base_of, model_identity, refuse_other_base
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.opening import Start, find_start

LORA = {"rank": 2, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    tiny_policy().save_pretrained(folder)
    return folder


def make_run(path, base, lora=LORA, **identity):
    recipe = tiny_recipe(model={"path": str(base), "lora": lora})
    found = identity or model_identity(str(base), None)
    return RunDirectory.create(path, to_yaml(recipe), {"model": {"path": str(base), **found}, "forked_from": None})


def change_one_weight(base):
    state = load_file(base / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"].mul_(1.01)
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})


def loaded(run, *overrides):
    return load_recipe(run.recipe_file, list(overrides))


def test_weights_that_changed_in_place_are_told_apart_and_named(base, tmp_path):
    run = make_run(tmp_path / "run", base)
    assert base_of(run)[0] == str(base)
    size = (base / "model.safetensors").stat().st_size
    change_one_weight(base)
    assert (base / "model.safetensors").stat().st_size == size
    with pytest.raises(UsageError, match=r"not the weights that .*run were trained on\n  fingerprint: "):
        base_of(run)


def test_a_copy_elsewhere_is_the_same_and_small_files_have_a_fingerprint_too(base, tmp_path):
    import shutil

    shutil.copytree(base, tmp_path / "copy")
    assert model_identity(str(base), None) == model_identity(str(tmp_path / "copy"), None)
    (tmp_path / "small").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "small" / "model.safetensors")
    assert len(model_identity(str(tmp_path / "small"), None)["fingerprint"]) == 32


def test_runs_from_before_fingerprints_are_compared_by_size(base, tmp_path):
    size = (base / "model.safetensors").stat().st_size
    assert base_of(make_run(tmp_path / "old", base, files_bytes={"model.safetensors": size}))
    with pytest.raises(UsageError, match=r"files_bytes: .* in the run"):
        base_of(make_run(tmp_path / "other", base, files_bytes={"model.safetensors": size + 1}))


def test_a_hub_model_is_taken_at_the_commit_of_the_run(tmp_path, monkeypatch):
    from types import SimpleNamespace

    import transformers

    newest = "b" * 40

    def from_pretrained(name, revision=None):
        return SimpleNamespace(_commit_hash=revision or newest)

    monkeypatch.setattr(transformers, "AutoConfig", SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setattr(base_model, "resolve_model", lambda model, cache: model.path)
    run = make_run(tmp_path / "run", "org/model", commit="a" * 40)
    resolved, model = base_of(run)
    assert (resolved, model.revision) == ("org/model", "a" * 40)
    # A resume or fork trains what its recipe names: here the hub's newest.
    with pytest.raises(UsageError, match=f"commit: {'a' * 40} in the run, {newest} now") as caught:
        refuse_other_base(run, loaded(run).recipe.model)
    assert f"--set model.revision={'a' * 40}" in caught.value.hint


def test_a_resume_on_other_base_weights_is_refused(base, tmp_path):
    run = make_run(tmp_path / "run", base)
    assert find_start(loaded(run), Start(run.path, resume=True), print).resuming
    change_one_weight(base)
    with pytest.raises(UsageError, match="not the weights that the adapters"):
        find_start(loaded(run), Start(run.path, resume=True), print)


@pytest.mark.parametrize("change", ["model.lora=null", "model.lora.rank=4", "model.lora.targets=[q_proj]"])
def test_a_resume_cannot_change_the_adapters(base, tmp_path, change):
    run = make_run(tmp_path / "run", base)
    key = "model.lora.rank" if "null" in change else change.partition("=")[0]
    with pytest.raises(UsageError, match=rf"--resume cannot change(.|\n)*{key}: "):
        find_start(loaded(run, change), Start(run.path, resume=True), print)


def test_a_resume_cannot_begin_to_have_adapters(base, tmp_path):
    run = make_run(tmp_path / "run", base, lora=None)
    with pytest.raises(UsageError, match=r"model\.lora\.rank: None in the run, 8 now"):
        find_start(loaded(run, "model.lora.rank=8"), Start(run.path, resume=True), print)


@pytest.mark.parametrize("change", ["model.lora=null", "model.lora.rank=4", "model.lora.alpha=16.0"])
def test_a_fork_cannot_change_the_adapters(base, tmp_path, change):
    parent = make_run(tmp_path / "parent", base)
    with pytest.raises(UsageError, match=r"--from: the checkpoint is of other weights(.|\n)*model\.lora") as caught:
        find_start(loaded(parent, change), Start(tmp_path / "child", fork=str(parent.path)), print)
    assert f"dapo convert {parent.path} --out DIR" in caught.value.hint


def test_a_fork_may_sync_otherwise_but_not_from_other_base_weights(base, tmp_path):
    parent = make_run(tmp_path / "parent", base)
    start = Start(tmp_path / "child", fork=str(parent.path))
    with pytest.raises(UsageError, match="no complete checkpoint"):  # it got that far
        find_start(loaded(parent, "rollout.engine=vllm", "model.lora.sync=merged"), start, print)
    change_one_weight(base)
    with pytest.raises(UsageError, match="not the weights that the adapters"):
        find_start(loaded(parent), start, print)


def test_runs_that_train_all_weights_need_no_base_model_any_more(base, tmp_path):
    run = make_run(tmp_path / "run", base, lora=None)
    change_one_weight(base)
    assert find_start(loaded(run), Start(run.path, resume=True), print).resuming
    assert json.loads(run.manifest_file.read_text())["model"]["path"] == str(base)
