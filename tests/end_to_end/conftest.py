"""One workspace for all end-to-end tests: prepared toy data and the toy model, made once by the product itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_dapo

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
