"""A run directory: where everything about one training run lies.

    recipe.yaml      the resolved recipe             rollouts/step_<n>.jsonl  sampled responses
    manifest.json    versions, commit, machine, data checkpoints/step_<n>/    what a resume needs
    metrics.jsonl    one object per step             evals/                   evaluation reports

`manifest.json` is written last, so a folder that has it is a run, and one that holds only our other first files is
the remains of a process that was killed while starting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.run.files import Note, next_free, print_note, write_atomic
from dapo_cli.run.lock import LOCK_FILE, lock_folder

RECIPE_FILE = "recipe.yaml"
MANIFEST_FILE = "manifest.json"
METRICS_FILE = "metrics.jsonl"
FOLDERS = ("rollouts", "checkpoints", "evals")


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside a run directory that exists. Writers hold `lock()`; readers need none."""

    path: Path

    @classmethod
    def create(cls, path: Path, recipe_yaml: str, manifest: Mapping[str, Any]) -> RunDirectory:
        """Start a run in a folder that is missing, empty, or left by a start that was killed.

        Raises:
            UsageError: the folder holds a run or something else, or another process is starting there.
        """
        refuse_existing(path)
        run = cls(path)
        path.mkdir(parents=True, exist_ok=True)
        with run.lock():
            refuse_existing(path)
            for folder in FOLDERS:
                (path / folder).mkdir(exist_ok=True)
            write_atomic(run.recipe_file, recipe_yaml)
            write_atomic(run.manifest_file, _json(manifest))
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The run in `path`.

        Raises:
            UsageError: there is none.
        DapoError: it has lost its recipe.
        """
        if not is_run(path):
            reason = f"no {MANIFEST_FILE} in it" if path.is_dir() else "no such folder"
            raise UsageError(f"{path}: not a run directory ({reason})", hint="`dapo train RECIPE` makes one in runs/")
        run = cls(path)
        if not run.recipe_file.is_file():
            raise DapoError(f"{run.recipe_file}: is missing, so this run cannot be continued or evaluated")
        return run

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / RECIPE_FILE

    @property
    def manifest_file(self) -> Path:
        """Versions, commit, machine, data."""
        return self.path / MANIFEST_FILE

    @property
    def metrics_file(self) -> Path:
        """One JSON object per step."""
        return self.path / METRICS_FILE

    @property
    def rollouts(self) -> Path:
        """Folder of sampled responses, one file per step."""
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, one folder per saved step."""
        return self.path / "checkpoints"

    @property
    def evals(self) -> Path:
        """Folder of evaluation reports."""
        return self.path / "evals"

    def lock(self, note: Note = print_note) -> AbstractContextManager[None]:
        """Keep other writers out while the body runs.

        Raises:
            UsageError: another process is writing to this run; names its process id.
        """
        return lock_folder(self.path, note)

    def manifest(self) -> dict[str, Any]:
        """The content of `manifest.json`.

        Raises:
            DapoError: it cannot be read.
        """
        try:
            content = json.loads(self.manifest_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DapoError(f"{self.manifest_file}: is damaged: {error}") from error
        if not isinstance(content, dict):
            raise DapoError(f"{self.manifest_file}: is damaged: want an object, got {type(content).__name__}")
        return content

    def record_resume(self, step: int, recipe_yaml: str, environment: Mapping[str, Any]) -> None:
        """Add `environment` (see `describe_environment`) to the manifest's list `resumed`.

        A recipe that changed replaces `recipe.yaml`, whose old text stays as `recipe.before-<step>.<n>.yaml`.
        """
        if (old := self.recipe_file.read_text(encoding="utf-8")) != recipe_yaml:
            write_atomic(next_free(self.path, f"recipe.before-{step}.{{}}.yaml"), old)
            write_atomic(self.recipe_file, recipe_yaml)
        manifest = self.manifest()
        manifest.setdefault("resumed", []).append({"step": step, **environment})
        write_atomic(self.manifest_file, _json(manifest))


def is_run(path: Path) -> bool:
    """Whether `path` holds a run that was started completely."""
    return (path / MANIFEST_FILE).is_file()


def refuse_existing(path: Path) -> None:
    """Pass where a run can be created.

    Raises:
        UsageError: `path` holds a run (names the three ways on), is a file, or holds other files.
    """
    if is_run(path):
        raise UsageError(
            f"{path}: this run exists already",
            hint="--resume continues it, --fresh starts over and keeps the old one as "
            f"{path.name}.old-<n>, --run-dir DIR writes elsewhere",
        )
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: is a file, not a folder", hint="give another folder with --run-dir")
    if path.is_dir() and (path / RECIPE_FILE).is_file() and any((path / "checkpoints").glob("step_*")):
        raise UsageError(
            f"{path}: a run that has lost its {MANIFEST_FILE}",
            hint="put the file back to continue it, or give another folder with --run-dir",
        )
    if path.is_dir() and not _only_remains(path):
        raise UsageError(
            f"{path}: holds files that are not a run of dapo", hint="give an empty or new folder with --run-dir"
        )


def fresh(path: Path) -> Path | None:
    """Move the run in `path` to `<name>.old-<n>` and return where it is now; None when there was nothing.

    Raises:
        UsageError: `path` is not a run, another process is writing to it, or it cannot be moved.
    """
    if not path.exists():
        return None
    if not is_run(path):
        refuse_existing(path)
        return None
    path = path.resolve()
    target = next_free(path.parent, f"{path.name.replace('{', '{{').replace('}', '}}')}.old-{{}}")
    with lock_folder(path):
        try:
            os.rename(path, target)
        except OSError as error:
            raise UsageError(f"{path}: cannot be moved to {target}: {error.strerror}", hint="use --run-dir") from error
    return target


def _only_remains(path: Path) -> bool:
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith((f".{RECIPE_FILE}.", ".manifest."))}
    return names <= {LOCK_FILE, RECIPE_FILE, *FOLDERS} and not any(
        any((path / folder).iterdir()) for folder in FOLDERS if (path / folder).is_dir()
    )


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
