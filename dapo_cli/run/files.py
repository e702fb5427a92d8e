"""Writing files so that a killed process leaves either the old content or the new one, and telling the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

Note = Callable[[str], None]
"""Shows one line to the user."""


def print_note(text: str) -> None:
    """Show `text` on standard error, where it does not mix with the lines that scripts read."""
    print(text, file=sys.stderr, flush=True)


def sync_folder(folder: Path) -> None:
    """Make the names inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of `path` survive a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> int:
    """Replace `path` by `text` in one step and return its size in bytes.

    A lone surrogate, which UTF-8 cannot hold, is written as its JSON escape.

    Raises:
        OSError: the file cannot be written; `path` is then as it was.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    content = text.encode("utf-8", errors="backslashreplace")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return len(content)


def next_free(folder: Path, pattern: str) -> Path:
    """First path of `pattern`, counted from 1 in place of its `{}`, that does not exist in `folder`."""
    number = 1
    while (path := folder / pattern.format(number)).exists():
        number += 1
    return path
