"""Whether a checkpoint folder is what was saved: a manifest of sizes and hashes, written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapo_cli.run.files import sync_file, sync_folder

MANIFEST_FILE = "manifest.json"


Metric = tuple[str, float]
"""The name of a metric, and its value at a checkpoint's step."""


def seal(folder: Path, step: int, metric: Metric | None = None) -> None:
    """Write the manifest of `folder` last, once everything it lists is on the disk.

    `metric` is what the checkpoint is worth, by which the best are kept.

    Raises:
        OSError: a file cannot be read or synced.
    """
    paths = sorted(folder.rglob("*"))
    files = {
        path.relative_to(folder).as_posix(): {"size_bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in paths
        if path.is_file()
    }
    manifest = folder / MANIFEST_FILE
    for path in paths:
        sync_file(path) if path.is_file() else sync_folder(path)
    content: dict[str, Any] = {"step": step, "files": files}
    if metric is not None:
        content["metric"] = {"name": metric[0], "value": metric[1]}
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sync_file(manifest)
    sync_folder(folder)


def sealed_bytes(folder: Path) -> int | None:
    """The size of all files that the manifest of `folder` lists; None without a readable one."""
    try:
        files = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
        return sum(int(entry["size_bytes"]) for entry in files.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def sealed_metric(folder: Path) -> Metric | None:
    """What the manifest of `folder` says the checkpoint is worth; None where it says nothing."""
    try:
        metric = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))["metric"]
        return str(metric["name"]), float(metric["value"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def find_damage(folder: Path, step: int, *, check_hashes: bool) -> str | None:
    """Why `folder` is not the complete checkpoint of `step`; None when it is."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["step"] != step:
            return f"its manifest is of step {manifest['step']}"
        files = {folder / name: (entry["size_bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return f"no {MANIFEST_FILE}, so its save did not finish"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST_FILE} cannot be read"
    for path, (size_bytes, sha256) in files.items():
        name = path.relative_to(folder)
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size_bytes:
            return f"{name} has {path.stat().st_size} bytes, should have {size_bytes}"
        if check_hashes and _sha256(path) != sha256:
            return f"{name} has changed since it was saved (sha256)"
    return None


def require_plain(value: object, where: str) -> None:
    """Pass for what comes back from JSON as it was, tuples aside.

    Raises:
        TypeError: `value` holds something else; the message says where.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: keys must be text, got {key!r}")
            require_plain(inner, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            require_plain(inner, f"{where}[{index}]")
    elif type(value) not in {str, int, float, bool, type(None)}:
        raise TypeError(f"{where}: must be a plain JSON value, got {type(value).__name__}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
