"""No committed text knows the machine it was written on."""

from __future__ import annotations

import re

from source_tree import REPOSITORY, tracked_files

# Written in pieces, so that this file does not match itself.
FORBIDDEN = re.compile(
    "|".join(
        (
            r"(?<![\w.])/" + r"(?:work|root|home|Users|opt|mnt)/",
            r"\.\./" + "shared",
            "pypi" + r"\.org",
            "python" + "hosted",
            "registry" + r"\.npmjs",
            r"download\." + "pytorch",
        )
    )
)
BINARY = {".parquet", ".gguf", ".safetensors", ".png", ".npz"}


def test_no_absolute_path_no_registry_and_no_neighbouring_folder() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        if path.suffix not in BINARY
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_pattern_sees_what_it_is_for() -> None:
    assert FORBIDDEN.search("see /" + "home/me/data")
    assert FORBIDDEN.search("from ../" + "shared/data")
    assert not FORBIDDEN.search("runs/demo/root/x and docs/opt.md")
