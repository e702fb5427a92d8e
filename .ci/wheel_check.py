"""Build the sdist and the wheel, install the wheel in an empty venv outside the repository, and use it there.

Exits non-zero with one line on the first thing that is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RESOURCE_FOLDERS = ("recipes", "data", "evals")
TWO_STEPS = ("--set", "train.steps=2", "--set", "eval.samples=1", "--set", "eval.problems=8")


def run(command: list[str], folder: Path, expected: int = 0) -> str:
    """Run `command` in `folder` and return its output; stop when the exit code is not `expected`."""
    print("+", " ".join(command), flush=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != expected:
        sys.exit(f"{done.stdout}\nwheel-check: exit code {done.returncode}, expected {expected}: {' '.join(command)}")
    return done.stdout


def build_wheel(out: Path) -> Path:
    """Build the sdist, and the wheel from that sdist, so that a file missing in either shows."""
    run([sys.executable, "-m", "build", "--outdir", str(out), str(REPOSITORY)], out)
    return next(out.glob("*.whl"))


def tracked(*folders: str) -> set[str]:
    """Files of these folders that git tracks."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True
    )
    return {name for name in listing.stdout.split("\0") if name and (REPOSITORY / name).is_file()}


def check_contents(wheel: Path) -> None:
    """Every tracked file of the package and the resource folders is in the wheel, and nothing else is importable."""
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"dapo_cli/_resources/{name}" for name in tracked(*RESOURCE_FOLDERS)} | tracked("dapo_cli")
    if missing := sorted(expected - names):
        sys.exit(f"wheel-check: {wheel.name} lacks {', '.join(missing)}")
    tops = {name.split("/")[0] for name in names}
    if extra := sorted(top for top in tops if top != "dapo_cli" and not top.endswith(".dist-info")):
        sys.exit(f"wheel-check: {wheel.name} installs {', '.join(extra)} beside dapo_cli")


def install(wheel: Path, venv: Path, torch: str, torch_index: str | None) -> None:
    """An empty venv with torch, the core lock and the wheel; pip itself confirms that requirements are met."""
    run([sys.executable, "-m", "venv", str(venv)], venv.parent)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    lock = str(REPOSITORY / "requirements" / "core.lock")
    index = ["--index-url", torch_index] if torch_index else []
    run([*pip, "install", "--quiet", *index, "-c", lock, f"torch=={torch}"], venv.parent)
    run([*pip, "install", "--quiet", "--no-deps", "-r", lock, str(wheel)], venv.parent)
    run([*pip, "check"], venv.parent)


def use(venv: Path, folder: Path) -> None:
    """The way of a user who has only the wheel: help, data, two steps of the demo, evaluation, export."""
    dapo, python = str(venv / "bin" / "dapo"), str(venv / "bin" / "python")
    run([dapo, "--help"], folder)
    for name in RESOURCE_FOLDERS:
        if "ModuleNotFoundError" not in run([python, "-c", f"import {name}"], folder, expected=1):
            sys.exit(f"wheel-check: importing {name} failed, but not because it is absent")
    run([dapo, "prepare-data", "demo"], folder)
    run([dapo, "train", "demo", *TWO_STEPS], folder)
    run([dapo, "eval", "--run", "runs/demo", "--samples", "1"], folder)
    run([dapo, "convert", "runs/demo", "--out", "export"], folder)
    steps = [json.loads(line)["step"] for line in (folder / "runs/demo/metrics.jsonl").read_text().splitlines()]
    if {1, 2} - set(steps):
        sys.exit(f"wheel-check: runs/demo/metrics.jsonl holds steps {steps}, expected 1 and 2")
    loaded = "from transformers import AutoModelForCausalLM as M; print(M.from_pretrained('export').num_parameters())"
    print(f"wheel-check: the exported model has {run([python, '-c', loaded], folder).split()[-1]} parameters")


def main() -> None:
    """Run all checks in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="version of torch to install")
    parser.add_argument("--torch-index", help="index to take torch from")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dapo-wheel-") as name:
        folder = Path(name)
        (folder / "dist").mkdir()
        (folder / "work").mkdir()
        wheel = build_wheel(folder / "dist")
        check_contents(wheel)
        install(wheel, folder / "venv", arguments.torch, arguments.torch_index)
        use(folder / "venv", folder / "work")
    print(f"wheel-check: {wheel.name} installs and runs outside the repository")


if __name__ == "__main__":
    main()
