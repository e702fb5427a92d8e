"""What a run was made from: versions, commit, machine, model and data."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("dapo", "torch", "transformers", "numpy")


def build_manifest(
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    first_prompt: Mapping[str, Any],
    contaminated: bool,
    forked_from: str | None,
) -> dict[str, Any]:
    """The content of `manifest.json`.

    `model` says where the weights came from and what tells them apart, `data` gives the hashes of the training and
    held-out problems, `first_prompt` is the first prompt as the engine sees it and what ends a response,
    `contaminated` is true when training problems are in the benchmark, `forked_from` is the RUN[@STEP] it began at.
    """
    return {
        **describe_environment(),
        "model": dict(model),
        "data": dict(data),
        "first_prompt": dict(first_prompt),
        "contaminated": contaminated,
        "forked_from": forked_from,
    }


def describe_environment() -> dict[str, Any]:
    """Time (UTC), command, versions (null: not installed), commit and machine of this process."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "versions": versions(),
        **git_commit(Path(__file__).resolve().parents[1]),
        "machine": describe_machine(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide a run's numbers; null is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def git_commit(folder: Path) -> dict[str, Any]:
    """Commit of the checkout that tracks `folder/__init__.py`, and whether the tree differs from it.

    Both are null for an installed package, also where its environment lies inside somebody else's checkout.
    """
    unknown = {"commit": None, "uncommitted_changes": None}
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return unknown
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return unknown
    return {"commit": commit, "uncommitted_changes": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe_machine() -> dict[str, Any]:
    """Platform, processors this process may use, memory, and the GPUs where torch is already loaded."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpu_names(),
    }


def _gpu_names() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
