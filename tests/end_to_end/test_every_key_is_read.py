"""No key of the recipe is parsed and then ignored: short runs record which keys are read, and all must be."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names
from dapo_cli.recipe.schema import Recipe, Section

pytestmark = pytest.mark.slow

# Between them these runs switch on whatever reads a key only under a condition.
FIRST = """
extends: demo
model: {activation_checkpointing: true}
dynamic_sampling: {refill: whole_batches, problems_per_batch: 4, max_drawn_problems: 40}
train:
  steps: 1
  prompts_per_step: 4
  prompts_per_minibatch: 4
  loss_denominator: microbatch
  emulated_partition: {ranks: 2, tokens_per_microbatch: 1024}
tracking: {wandb: offline}
preflight: {problems: 2}
eval: {samples: 1, final_samples: 2, problems: 4, every: 1}
"""
SECOND = """
extends: demo
dataset:
  name: mine
  source: mine.jsonl
  problem_column: q
  answer_column: a
  heldout_problems: 8
  allow_benchmark_overlap: true
prompt:
  template: "{problem} ="
  format: plain
  few_shot: [{problem: 1 + 1, answer: "2"}]
  max_prompt_tokens: 20
  long_prompts: drop
dynamic_sampling: {max_drawn_problems: 2, when_exhausted: smaller_step}
reward: {scorer: "mine_scorer:score", response_prefix: "Answer: "}
train: {steps: 1, prompts_per_step: 2, prompts_per_minibatch: 2}
preflight: {problems: 2}
eval: {samples: 1, every: 1, after_training: false}
"""

THIRD = """
extends: demo
model: {lora: {rank: 4, alpha: 8.0, targets: [q_proj, down_proj], sync: adapter}}
rollout: {engine: vllm, max_concurrent_rollouts: 64, tensor_parallel: 1, enforce_eager: true}
train: {steps: 1, prompts_per_step: 4, prompts_per_minibatch: 4}
dynamic_sampling: {max_drawn_problems: 8}
preflight: {problems: 0}
eval: {before_training: false, after_training: false, every: null}
"""
FOURTH = """
extends: smoke
prompt: {long_prompts: refuse}
train: {steps: 1, prompts_per_step: 4, prompts_per_minibatch: 4}
dynamic_sampling: {max_drawn_problems: 8}
preflight: {problems: 0}
eval: {before_training: false, samples: 1, problems: 4}
"""


FIFTH = """
extends: demo
dataset:
  name: mixed
  parts:
    - name: sums
      source: parts
      revision: null
      files: ["sums.jsonl"]
      problem_column: q
      answer_column: a
      heldout_problems: 8
      weight: 2
      scorer: [integer]
    - {name: one_digit_sums, weight: 1}
  duplicates: keep
  conflicts: majority
  overlap_benchmarks: [aime_2024]
  overlapping_problems: drop
  allow_benchmark_overlap: true
eval:
  files: {aime_2024: no-benchmark.jsonl}
  model: toy
  engine: vllm
  tensor_parallel: auto
  max_response_tokens: 16
  samples: 1
  problems: 4
  before_training: false
train: {steps: 1, prompts_per_step: 4, prompts_per_minibatch: 4}
dynamic_sampling: {max_drawn_problems: 8}
preflight: {problems: 0}
"""


class Reads:
    """Records the section and name of every recipe key that is read while it is active."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: set[tuple[type, str]] = set()
        fetch = Section.__getattribute__

        def recording(section: Section, name: str) -> object:
            kind = type(section)
            if name in kind.model_fields and not self._inside_pydantic_or_recipe():
                self.keys.add((kind, name))
            return fetch(section, name)

        monkeypatch.setattr(Section, "__getattribute__", recording)

    @staticmethod
    def _inside_pydantic_or_recipe() -> bool:
        """Checking, printing and storing a recipe are not uses of its keys; a frame of dapo_cli/recipe shows them."""
        import sys

        caller = sys._getframe(2).f_code.co_filename
        used = ("derived.py", "cluster.py")
        return "pydantic" in caller or (Path(caller).parent.name == "recipe" and Path(caller).name not in used)


def all_keys(model: type = Recipe) -> set[tuple[type, str]]:
    """Every (section, key) of the schema that is not a section itself."""
    from pydantic import BaseModel

    found: set[tuple[type, str]] = set()
    for name, field in model.model_fields.items():
        nested = [kind for kind in _types(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for kind in nested:
            found |= all_keys(kind)
        if not nested:
            found.add((model, name))
    return found


def place(key: str) -> tuple[type, str]:
    """The section and name of a dotted key."""
    model: type = Recipe
    *sections, name = key.split(".")
    for section in sections:
        field = model.model_fields[section]
        model = next(kind for kind in _types(field.annotation) if isinstance(kind, type) and issubclass(kind, Section))
    return model, name


def _types(annotation: object) -> list[object]:
    from typing import get_args

    inner = [kind for argument in get_args(annotation) for kind in _types(argument)]
    return [annotation, *inner]


def start_a_rank(recipe: Recipe, model: str) -> None:
    """What the process of a policy rank reads, read in this one."""
    from dapo_cli.backend.policy_rank import PolicyRank

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = PolicyRank(recipe, model)
    rank.start(0, 1, f"tcp://127.0.0.1:{port}")
    rank.finish()


@pytest.mark.vllm
@pytest.mark.ray
def test_every_key_is_read_by_a_run(workspace, monkeypatch):
    for package in ("wandb", "vllm", "ray", "peft"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("WANDB_SILENT", "true")
    # "1 + 2" and "1 - 2" have the same letters and digits: an overlap of training and held-out problems.
    rows = [{"q": f"{a} + {b}", "a": str(a + b)} for a in range(5) for b in range(5)]
    rows += [{"q": f"{a} - {b}", "a": str(a - b)} for a in range(5) for b in range(5)]
    rows += [{"q": "1 + 1" + " + 1" * 20, "a": "22"}]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Another rule than the recipe's `dapo`, so that the keys of scoring processes are read.
    Path("mine_scorer.py").write_text(
        "def score(response, ground_truth, problem):\n    return ground_truth in response\n"
    )
    Path("first.yaml").write_text(FIRST)
    Path("second.yaml").write_text(SECOND)
    Path("third.yaml").write_text(THIRD)
    Path("fourth.yaml").write_text(FOURTH)
    Path("fifth.yaml").write_text(FIFTH.replace("files: {aime_2024: no-benchmark.jsonl}", ""))
    Path("parts").mkdir()
    Path("parts/sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reads = Reads(monkeypatch)
    from dapo_cli.cli import app

    for arguments in (
        ["prepare-data", "second.yaml"],
        ["train", "first.yaml"],
        ["train", "second.yaml"],
        ["train", "third.yaml"],
        ["train", "fourth.yaml"],
        ["prepare-data", "fifth.yaml"],
        ["train", "fifth.yaml"],
        ["eval", "fifth.yaml"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        if arguments == ["prepare-data", "second.yaml"]:
            assert "1 dropped: prompt too long" in result.output
    model = str(next(Path("runs/_models").glob("toy-*")).resolve())
    recipe = load_recipe("fourth.yaml").recipe
    start_a_rank(recipe, model)
    from dapo_cli.rollout.vllm_arguments import engine_arguments

    engine_arguments(recipe, model, device="cuda")
    assert json.loads(Path("runs/second/manifest.json").read_text())["contaminated"]
    assert "CONTAMINATED" in Path("runs/second/evals/heldout_step_1/report.json").read_text()
    unread = {f"{kind.__name__}.{name}" for kind, name in all_keys() - reads.keys}
    assert unread == set()
    stated = {
        (name, key)
        for name in packaged_names()
        for key, origin in load_recipe(name).origins.items()
        if origin.kind != "default" and place(key) not in reads.keys
    }
    assert stated == set()
