"""docs/custom.md as a reader follows it: its files into an empty folder, its commands exactly as printed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "custom.md").read_text(encoding="utf-8")
NAMED_FILE = re.compile(r"(?<=\n\n)`([\w.-]+)`[^\n]*(?:\n[^\n]+)*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(NAMED_FILE.findall(PAGE))
EXAMPLES = ("sums", "lines")
# Points between what the page says and what another processor may well measure.
TOLERANCE = 0.35


def blocks() -> list[list[str]]:
    """The lines of each block of commands."""
    return [block.splitlines() for block in COMMANDS.findall(PAGE)]


def printed_figures(example: str) -> tuple[float, float]:
    """Held-out accuracy before and after, as the page's table has it for seed 0."""
    row = re.search(rf"^\| {example} \| 0 \| ([\d.]+)% \| ([\d.]+)% \|", PAGE, re.MULTILINE)
    assert row is not None, f"no row for {example}, seed 0"
    return float(row[1]) / 100, float(row[2]) / 100


def test_an_example_is_twenty_lines_ten_lines_and_five_commands():
    assert len(FILES) == 3 * len(EXAMPLES) + 1  # and the recipe of a pretrained model
    assert len(blocks()) == len(EXAMPLES) + 1  # the last one only checks that recipe
    for example, commands in zip(EXAMPLES, blocks(), strict=False):
        rows = [json.loads(line) for line in FILES[f"{example}.jsonl"].splitlines()]
        assert len(rows) == 20
        assert all(row.keys() == {"problem", "answer"} for row in rows)
        functions = [node for node in ast.parse(FILES[f"{example}_score.py"]).body if isinstance(node, ast.FunctionDef)]
        (function,) = functions
        assert [argument.arg for argument in function.args.args] == ["response", "ground_truth", "problem"]
        assert len(FILES[f"{example}_score.py"].splitlines()) <= 10
        assert len(commands) <= 5
        assert all(command.startswith("dapo ") for command in commands)


def run(command: str, folder: Path) -> str:
    """Type the command into a shell; what it printed. One that fails ends the test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, text=True, capture_output=True, check=False, env=environment
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder after the last command of the page, and what each command printed."""
    folder = tmp_path_factory.mktemp("custom-page")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder, {command: run(command, folder) for block in blocks() for command in block}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_training_raises_the_reward_and_the_heldout_accuracy(followed, example):
    folder, _ = followed
    lines = (folder / "runs" / example / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    accuracies = [step["eval/heldout/avg@16"] for step in steps if "eval/heldout/avg@16" in step]
    rewards = [step["reward/mean"] for step in steps if "reward/mean" in step]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.5
    before, after = printed_figures(example)
    assert accuracies[-1] > accuracies[0] + 0.2
    assert accuracies[0] == pytest.approx(before, abs=TOLERANCE)
    assert accuracies[-1] == pytest.approx(after, abs=TOLERANCE)
    assert all(step.get("reward/verifier_errors", 0) == 0 for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_commands_leave_a_report_and_a_model(followed, example):
    folder, _ = followed
    (report,) = (folder / "runs" / example / "evals").glob("heldout_avg32_step_*/report.json")
    assert json.loads(report.read_text(encoding="utf-8"))["settings"]["samples"] == 32
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / f"{example}-model")
    tokenizer = AutoTokenizer.from_pretrained(folder / f"{example}-model")
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)


@pytest.mark.slow
def test_the_function_is_tried_first_as_the_page_says(followed):
    _, printed = followed
    verdicts = [output for command, output in printed.items() if command.startswith("dapo reward explain")]
    assert "verdict: right, score +1" in verdicts[0]
    assert "verdict: wrong, score +0" in verdicts[1]
