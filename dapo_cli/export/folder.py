"""The folder of an exported model: it is there when it is whole and verified, and not before."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from dapo_cli import __version__
from dapo_cli.errors import UsageError
from dapo_cli.run.files import sync_file, sync_folder

Dtype = Literal["float32", "bfloat16", "float16"]


def refuse_dtype(dtype: str) -> None:
    """Pass for a precision that can be written.

    Raises:
        UsageError: it is another.
    """
    if dtype not in get_args(Dtype):
        raise UsageError(f"--dtype: must be one of {', '.join(get_args(Dtype))}, got {dtype!r}")


def made_by(dtype: Dtype) -> dict[str, Any]:
    """Precision and versions, for the model card."""
    import torch
    import transformers

    versions = {"dapo": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {"dtype": dtype, "versions": versions}


@contextmanager
def folder_in_the_making(destination: Path) -> Iterator[Path]:
    """A new folder beside `destination` that becomes `destination` when the body ends well, else vanishes.

    Its files are on the disk before it gets its name. One that a killed process left is removed by the next.

    Raises:
        UsageError: `destination` exists and is not an empty folder, or another process is writing it.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"--out: {destination} exists and is not an empty folder", hint="Give another --out.")
    partial = destination.with_name(f".{destination.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _alone_in(partial):
        _empty(partial)
        try:
            yield partial
            for path in partial.iterdir():
                sync_file(path)
            sync_folder(partial)
            if destination.exists():
                destination.rmdir()
            partial.rename(destination)
            sync_folder(destination.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The other may have renamed it between the two calls above.
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise BlockingIOError
        yield
    except BlockingIOError as error:
        raise UsageError(f"--out: another process is writing {folder}", hint="Wait for its end.") from error
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
