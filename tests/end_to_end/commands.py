"""Running the `dapo` command as a user does, and reading what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
