"""One workspace for all end-to-end tests: prepared toy data and the toy model, made once by the product itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    "train.steps=6",
    "train.prompts_per_step=8",
    "train.prompts_per_minibatch=4",
    "dynamic_sampling.max_drawn_problems=80",
    "preflight.problems=4",
    "eval.samples=1",
    "eval.problems=20",
    "eval.every=3",
    "checkpoint.every=2",
)

Dapo = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `dapo train demo` can start at once."""
    folder = tmp_path_factory.mktemp("workspace")
    done = run_dapo(folder, "prepare-data", "demo")
    assert done.returncode == 0, done.stderr
    from dapo_cli.toy.model import toy_model_folder

    toy_model_folder(folder / "runs" / "_models")
    return folder


@pytest.fixture
def dapo(workspace: Path) -> Dapo:
    """Run the `dapo` command in the workspace, in a process of its own."""
    return lambda *arguments, **options: run_dapo(workspace, *arguments, **options)


def run_dapo(folder: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run `dapo` with `arguments`; `before` is Python that runs first in the same process."""
    program = f"import sys; sys.argv = ['dapo', *{arguments!r}]\n{before}\nfrom dapo_cli.cli import main\nmain()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, text=True, capture_output=True, check=False, env=environment
    )


def settings(*values: str) -> list[str]:
    """`--set` options."""
    return [word for value in values for word in ("--set", value)]


def repeatable_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what differs between machines and hours."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "perf/"))}
        for line in lines
    ]
