"""After training: `dapo eval --run`, `dapo convert`, and the exported folder in transformers and in `dapo eval`."""

from __future__ import annotations

import json

import pytest
import torch
from commands import SMALL, settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(workspace):
    from commands import run_dapo

    small = settings(*SMALL, "train.steps=2")
    done = run_dapo(workspace, "train", "demo", "--run-dir", "runs/trained", *small)
    assert done.returncode == 0, done.stderr
    return workspace / "runs" / "trained"


def report(folder):
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_eval_of_a_run_gives_the_accuracy_measured_inside_it(trained, dapo):
    done = dapo("eval", "--run", "runs/trained", "--out", "runs/eval-of-run")
    assert done.returncode == 0, done.stderr
    inside = report(trained / "evals" / "heldout_step_2")
    outside = report(trained.parent / "eval-of-run")
    assert outside["problems"] == inside["problems"]
    assert "95%" in done.stdout
    assert "next: dapo convert runs/trained@2" in done.stdout


def test_the_exported_folder_is_the_policy_for_transformers_and_for_eval(trained, dapo, workspace):
    done = dapo("convert", "runs/trained@2", "--out", "exported")
    assert done.returncode == 0, done.stderr
    assert "written and verified" in done.stdout
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(workspace / "exported")
    tokenizer = AutoTokenizer.from_pretrained(workspace / "exported")
    weights = load_file(trained / "checkpoints/step_2/model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 1 + 2?"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>assistant\n")

    evaluated = dapo(
        "eval",
        "demo",
        "--model",
        "exported",
        "--out",
        "runs/eval-of-export",
        *settings("eval.problems=20"),
        "--samples",
        "1",
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert report(workspace / "runs/eval-of-export")["problems"] == report(trained / "evals/heldout_step_2")["problems"]


def test_convert_refuses_a_folder_in_use_and_a_step_that_is_not_there(trained, dapo, workspace):
    (workspace / "taken").mkdir()
    (workspace / "taken" / "file").write_text("")
    assert "is not an empty folder" in dapo("convert", "runs/trained", "--out", "taken").stderr
    missing = dapo("convert", "runs/trained@7", "--out", "other")
    assert missing.returncode == 2
    assert "no checkpoint of step 7" in missing.stderr


def test_eval_alone_means_the_published_model_on_aime_2024(dapo):
    done = dapo("eval")
    assert done.returncode == 2
    assert "model BytedTsinghua-SIA/DAPO-Qwen-32B: the cache does not have all of it, and HF_HUB_OFFLINE" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--run", "runs/trained", "--model", "toy"), "--run and --model exclude each other"),
        (("demo", "--run", "runs/trained"), "RECIPE and --run exclude each other"),
        (("--aime2024", "--benchmark", "gsm8k"), "--aime2024 and --benchmark exclude each other"),
        (("--all-steps",), "--all-steps needs --run RUN"),
        (("demo", "--benchmark", "aime"), "no card evals/aime.yaml"),
        (("--completions", "no.jsonl"), "no.jsonl: no such file"),
        (("--compare", "runs", "runs"), "runs: no finished evaluation"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(trained, dapo, options, message):
    done = dapo("eval", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_planted_generation_config_changes_nothing(trained, dapo, workspace):
    """repetition_penalty, top_k and a low temperature in a checkpoint's generation config must not reach the engine."""
    assert dapo("convert", "runs/trained@2", "--out", "planted").returncode == 0
    file = workspace / "planted" / "generation_config.json"
    planted = json.loads(file.read_text()) | {
        "do_sample": True,
        "repetition_penalty": 1.1,
        "top_k": 20,
        "temperature": 0.1,
    }
    file.write_text(json.dumps(planted))
    options = ("--samples", "1", *settings("eval.problems=20"))
    done = dapo("eval", "demo", "--model", "planted", "--out", "runs/eval-of-planted", *options)
    assert done.returncode == 0, done.stderr
    inside = report(trained / "evals/heldout_step_2")["problems"]
    assert report(workspace / "runs/eval-of-planted")["problems"] == inside
