"""Put recipes/, data/ and evals/ into the built package as `dapo_cli/_resources/`; the rest is in pyproject.toml.

The source tree keeps them at the top level, where people look for them, and only `dapo_cli` is importable.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RESOURCE_FOLDERS = ("recipes", "data", "evals")


class BuildWithResources(build_py):
    """The usual build of the Python files, then a fresh copy of the resource folders."""

    def run(self) -> None:
        """Copy the resource folders; an editable install reads them from the source tree instead."""
        super().run()
        if self.editable_mode:
            return
        source = Path(__file__).parent
        target = Path(self.build_lib) / "dapo_cli" / "_resources"
        shutil.rmtree(target, ignore_errors=True)
        for folder in RESOURCE_FOLDERS:
            shutil.copytree(source / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))


setup(cmdclass={"build_py": BuildWithResources})
