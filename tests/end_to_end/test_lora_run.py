"""A LoRA run from training to a whole model and to an adapter folder, by the command line alone."""

from __future__ import annotations

import json
import re

import pytest
import torch
from commands import SMALL, run_dapo, settings
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

LORA = ("model.lora.rank=8", "model.lora.alpha=16.0", "train.learning_rate=1e-3")


@pytest.fixture(scope="module")
def trained(workspace):
    """A run of two steps with adapters, and what was said."""
    small = settings(*SMALL, *LORA, "train.steps=2")
    done = run_dapo(workspace, "train", "demo", "--run-dir", "runs/adapted", *small)
    assert done.returncode == 0, done.stderr
    return workspace / "runs" / "adapted", done


def accuracies(folder):
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report["problems"]


def test_training_says_what_is_trained_and_checkpoints_hold_it_alone(trained):
    run, done = trained
    # Per layer rank 8 x (in + out): q 128, k and v 96 each, o 128, gate, up and down 192 each; two layers: 16384.
    assert re.search(r"16\.4k of \S+k parameters trained, optimizer state 131kB", done.stderr)
    stored = load_file(run / "checkpoints/step_2/model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == 16384
    assert all(".lora_A." in name or ".lora_B." in name for name in stored)
    assert any(tensor.any() for name, tensor in stored.items() if ".lora_B." in name)


def test_the_merged_model_is_the_policy_for_eval(trained, dapo, workspace):
    run, _ = trained
    done = dapo("convert", "runs/adapted", "--out", "merged")
    assert done.returncode == 0, done.stderr
    stored = load_file(run / "checkpoints/step_2/model.safetensors")
    merged, base = (load_file(folder / "model.safetensors") for folder in (workspace / "merged", toy(workspace)))
    name = "model.layers.0.mlp.up_proj"
    a, b = (stored[f"{name}.lora_{part}.default.weight"] for part in "AB")
    torch.testing.assert_close(merged[f"{name}.weight"], base[f"{name}.weight"] + 16 / 8 * (b @ a))
    assert torch.equal(merged["lm_head.weight"], base["lm_head.weight"])
    assert "- trained: LoRA of rank 8, alpha 16, on q_proj" in (workspace / "merged" / "README.md").read_text()
    evaluated = dapo(
        "eval",
        "demo",
        "--model",
        "merged",
        "--out",
        "runs/eval-of-merged",
        "--samples",
        "1",
        *settings("eval.problems=20"),
    )
    assert evaluated.returncode == 0, evaluated.stderr
    of_run = dapo("eval", "--run", "runs/adapted", "--out", "runs/eval-of-adapted")
    assert of_run.returncode == 0, of_run.stderr
    assert accuracies(workspace / "runs/eval-of-merged") == accuracies(workspace / "runs/eval-of-adapted")


def test_the_adapter_folder_is_written_verified_and_loads_in_peft(trained, dapo, workspace):
    run, _ = trained
    done = dapo("convert", "runs/adapted@2", "--out", "adapter", "--adapter")
    assert done.returncode == 0, done.stderr
    assert "written and verified" in done.stdout
    assert "next: dapo eval --run runs/adapted@2" in done.stdout
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(toy(workspace))
    loaded = PeftModel.from_pretrained(base, str(workspace / "adapter"))
    stored = load_file(run / "checkpoints/step_2/model.safetensors")
    found = loaded.get_base_model().state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


def test_a_resumed_lora_run_is_the_run_that_never_stopped(trained, dapo, workspace):
    small = settings(*SMALL, *LORA)
    whole = dapo("train", "demo", "--run-dir", "runs/adapted-whole", *small, *settings("train.steps=4"))
    assert whole.returncode == 0, whole.stderr
    first = dapo("train", "demo", "--run-dir", "runs/adapted-parts", *small, *settings("train.steps=2"))
    assert first.returncode == 0, first.stderr
    again = ("train", "demo", "--run-dir", "runs/adapted-parts", "--resume", *small, "--set", "train.steps=4")
    refused = dapo(*again, *settings("model.lora.rank=4"))
    assert refused.returncode == 2
    assert "model.lora.rank: 8 in the run, 4 now" in refused.stderr
    resumed = dapo(*again)
    assert resumed.returncode == 0, resumed.stderr
    one, other = (
        load_file(workspace / "runs" / name / "checkpoints/step_4/model.safetensors")
        for name in ("adapted-whole", "adapted-parts")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def toy(workspace):
    """The folder of the toy model that the run started from."""
    return next((workspace / "runs" / "_models").glob("toy-*"))
