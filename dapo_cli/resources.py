"""Where the packaged recipes and the dataset and benchmark cards are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dapo_cli.errors import DapoError

ResourceKind = Literal["recipes", "data", "evals"]


def resource_folder(kind: ResourceKind) -> Path:
    """The folder of packaged files of one kind: inside an installed package, else beside it in a source checkout.

    >>> (resource_folder("recipes") / "demo.yaml").is_file()
    True

    Raises:
        DapoError: neither place holds the folder.
    """
    package = Path(__file__).parent
    installed = package / "_resources" / kind
    if installed.is_dir():
        return installed
    # A folder called data/ next to the package in site-packages would belong to somebody else.
    checkout = package.parent / kind
    if (package.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    raise DapoError(
        f"{installed}: the packaged {kind} are missing from this installation", "Install dapo again from its wheel."
    )
