"""From the name or path on the command line to a recipe file."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from dapo_cli.errors import UsageError
from dapo_cli.resources import resource_folder

YAML_SUFFIXES = (".yaml", ".yml")


_OTHER_FILES = "mechanisms/"
"""Experiments, which have a schema of their own."""


def packaged_names() -> list[str]:
    """The packaged recipes as they are named on the command line.

    >>> "toy/naive_grpo" in packaged_names()
    True
    """
    folder = resource_folder("recipes")
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return sorted(name for name in names if not name.startswith(_OTHER_FILES))


def find_recipe(reference: str | Path, folder: Path | None = None) -> tuple[Path, bool]:
    """The file that `reference` means, and whether a packaged recipe was taken because there is no such file.

    Paths are relative to `folder`, by default the working directory.

    Raises:
        UsageError: neither a file nor the name of a packaged recipe.
    """
    text = str(reference)
    path = (folder or Path()) / os.path.expanduser(text)
    # os.path, because Path.is_file raises for names that no file can have.
    if os.path.isfile(path):
        return path, False
    if text and os.path.isdir(path) and text not in packaged_names():
        raise UsageError(f"{text}: a folder, not a recipe file", "Name the .yaml file in it.")
    names = packaged_names()
    if text in names:
        return resource_folder("recipes") / f"{text}.yaml", True
    raise UsageError(f"{text}: {_not_found(text, names)}", f"Packaged recipes: {', '.join(names)}")


def _not_found(text: str, names: list[str]) -> str:
    is_path = text.endswith(YAML_SUFFIXES) or text.startswith((".", "/", "~"))
    bare = text.removeprefix("recipes/").removesuffix(".yaml").removesuffix(".yml")
    known = {spelling: name for name in names for spelling in (name, name.rsplit("/", 1)[-1])}
    close = difflib.get_close_matches(bare, known, n=1, cutoff=0.5)
    suggestion = f"; did you mean {known[close[0]]}?" if close else ""
    return f"no such file{suggestion}" if is_path else f"neither a file nor a packaged recipe{suggestion}"
