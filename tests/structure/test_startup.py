"""Help and checks start fast because they load nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import REPOSITORY

HEAVY = ("torch", "transformers", "pyarrow", "wandb", "tokenizers", "safetensors")


def python(code: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, text=True, capture_output=True, check=False)


def after(arguments: list[str], modules: tuple[str, ...]) -> str:
    """A program that runs the command line with these arguments and names the given modules that it loaded."""
    return (
        f"import sys; sys.argv = ['dapo', *{arguments!r}]\n"
        "from dapo_cli.cli import main\n"
        "code = 0\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    code = stop.code or 0\n"
        f"print('LOADED', sorted(set({modules!r}) & set(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    light = (*HEAVY, "pydantic", "numpy", "yaml")
    done = python(f"import dapo_cli.cli, sys; print(sorted(set({light!r}) & set(sys.modules)))")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


COMMANDS = ["prepare-data", "check", "train", "eval", "convert", "reward"]


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    # The help of a command loads pydantic, because typer itself does.
    done = python(after(arguments, (*HEAVY, "numpy")))
    assert done.returncode == 0, done.stderr
    assert "LOADED []" in done.stderr
    assert "Usage" in done.stdout


def test_check_loads_no_torch() -> None:
    done = python(after(["check", "recipes/demo.yaml"], HEAVY))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "LOADED []" in done.stderr


def test_the_package_runs_under_its_installed_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dapo")), "--help"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)
