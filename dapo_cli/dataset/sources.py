"""Where a dataset's rows come from: a local file or folder, a hub repository, or a generator."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from dapo_cli.dataset.cards import DatasetCard, FileColumns
from dapo_cli.dataset.readers import KINDS, Batch, ColumnPair, read_batches
from dapo_cli.dataset.settings import PartSettings
from dapo_cli.dataset.split import generated_rows
from dapo_cli.errors import UsageError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class FileHash(BaseModel):
    """A file by name, size and content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """The opened source of one part."""

    description: str
    """generated, local, or the hub id with its commit."""
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    def hashes(self) -> tuple[FileHash, ...]:
        """Name, size and hash of every file."""
        return tuple(file_hash(path) for path in self.files)


def file_hash(path: Path) -> FileHash:
    """Name, size and SHA-256 of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileHash(name=path.name, size_bytes=path.stat().st_size, sha256=digest)


def open_source(part: PartSettings, source: str | None) -> Source:
    """The files to read: those of `source`, else of the part's own source, else of its card's hub repository.

    Raises:
        UsageError: files are needed and not given or not there, or given and not needed.
    """
    wanted = source or part.source
    if part.columns is None:
        if wanted is not None:
            raise UsageError(f"source: {part.name} is generated and reads no file, got {wanted}; leave the source out")
        return Source("generated", ())
    if wanted is None and part.card.hub is not None:
        return _from_hub(part.card.hub.id, part.revision or part.card.hub.revision, part.files or part.card.hub.files)
    if wanted is None:
        raise UsageError(
            f"source: {part.name} ships no problems; it reads a jsonl, json, csv or parquet file of yours",
            hint=f"give --source FILE or set dataset.source. {part.card.description}",
        )
    path = Path(wanted)
    if path.is_file():
        return Source("local", (path,))
    if path.is_dir():
        return Source("local", _folder_files(path, part.files))
    if path.suffix not in KINDS and _HUB_ID.fullmatch(wanted):
        return _from_hub(wanted, part.revision, part.files or tuple(f"**/*{kind}" for kind in KINDS))
    raise UsageError(f"{path}: source: no such file; give another with --source FILE or dataset.source")


def _from_hub(repo_id: str, revision: str | None, patterns: tuple[str, ...]) -> Source:
    from dapo_cli.hub import fetch_dataset_files

    fetched = fetch_dataset_files(repo_id, revision, patterns)
    files = tuple(path for path in fetched.files if path.suffix in KINDS)
    _one_split(repo_id, fetched.folder, files)
    pinned = revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision)
    note = f"{repo_id}: not pinned; read at commit {fetched.commit} (pin it with dataset.revision)"
    return Source(f"{repo_id}@{fetched.commit}", files, () if pinned else (note,))


def _folder_files(folder: Path, patterns: tuple[str, ...]) -> tuple[Path, ...]:
    found = {path for pattern in patterns or ("**/*",) for path in folder.glob(pattern)}
    files = tuple(sorted(path for path in found if path.is_file() and path.suffix in KINDS))
    if not files:
        which = f" that match {', '.join(patterns)}" if patterns else ""
        raise UsageError(f"{folder}: source: no {', '.join(KINDS)} files{which}", hint="see dataset.files")
    if not patterns:
        _one_split(str(folder), folder, files)
    return files


def _one_split(name: str, folder: Path, files: tuple[Path, ...]) -> None:
    """Training and test files side by side are not one dataset.

    Raises:
        UsageError: the names of the files speak of more than one split.
    """
    words = [set(re.findall(r"train|test|validation", str(path.relative_to(folder)))) for path in files]
    splits = sorted(set().union(*words))
    if len(splits) > 1:
        shown = ", ".join(str(path.relative_to(folder)) for path in files[:6])
        raise UsageError(
            f"{name}: holds files of several splits ({', '.join(splits)}): {shown}",
            hint='name those to read: dataset.files: ["**/train*"]',
        )


@dataclass(frozen=True, slots=True)
class Table:
    """One file, or the rows of a generator, of one part."""

    part: int
    path: Path | None

    def batches(self, settings: PartSettings, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[Batch]:
        """Every row in order; with `wanted` [rows of the table] only those it marks.

        Raises:
            UsageError: see `read_batches` and `sum_rows`.
        """
        if self.path is None:
            yield _generated(settings.card, wanted)
        else:
            columns = settings.columns or FileColumns()
            yield from read_batches(self.path, ColumnPair(columns.problem_column, columns.answer_column), wanted)


def tables_of(sources: Sequence[Source]) -> list[Table]:
    """The tables of every part's source, in order."""
    return [Table(part, path) for part, source in enumerate(sources) for path in source.files or (None,)]


def _generated(card: DatasetCard, wanted: npt.NDArray[np.bool_] | None) -> Batch:
    chosen = [(n, row) for n, row in enumerate(generated_rows(card), start=1) if wanted is None or wanted[n - 1]]
    return Batch(
        "sum {}", [n for n, _ in chosen], [row.problem for _, row in chosen], [row.answer for _, row in chosen]
    )
