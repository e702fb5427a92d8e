"""One writer per run directory: an advisory lock that the kernel drops with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from dapo_cli.errors import UsageError
from dapo_cli.run.files import Note, print_note

LOCK_FILE = ".lock"

_held: set[int] = set()


def _forget_in_child() -> None:
    # A forked worker that outlives a killed parent would otherwise go on holding the run.
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def lock_folder(folder: Path, note: Note = print_note) -> Iterator[None]:
    """Hold `folder/.lock` while the body runs.

    On a file system without locks it says so and goes on.

    Raises:
        UsageError: another process holds it; names its process id.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    _held.add(descriptor)
    try:
        _acquire(descriptor, folder, note)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {platform.node()}\n".encode(), 0)
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path, note: Note) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 256, 0).decode(errors="replace").split()
        pid, host = holder if len(holder) == 2 else ("unknown", "unknown host")
        raise UsageError(
            f"{folder}: another process (pid {pid} on {host}) is writing to this run",
            hint=f"wait for it, stop it with `kill {pid}`, or give another folder with --run-dir",
        ) from error
    except OSError as error:
        if error.errno not in {errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}:
            raise
        note(f"{folder}: this file system has no file locks; a second process on this run would not be noticed")
