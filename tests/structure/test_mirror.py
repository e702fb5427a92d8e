"""Tests lie where their source lies."""

from __future__ import annotations

from collections import Counter

from source_tree import PACKAGE, REPOSITORY

TESTS = REPOSITORY / "tests"
WITHOUT_SOURCE_FOLDER = {"structure", "packaging", "cluster", "end_to_end", "goldens", "helpers", "data"}


def source_folders() -> set[str]:
    """Folders of the package that hold code besides `__init__.py`."""
    return {path.parent.name for path in PACKAGE.glob("*/*.py") if path.name != "__init__.py"}


def test_every_source_folder_has_tests() -> None:
    tested = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert source_folders() - tested == set()


def test_every_test_folder_has_a_source_folder() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert folders - source_folders() - WITHOUT_SOURCE_FOLDER == set()


def test_names_of_test_files_are_unique() -> None:
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == set()
