"""Files and functions stay small enough to read in one go."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from source_tree import PACKAGE, REPOSITORY, source_files, syntax_tree, tracked_files

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
# Signatures that are somebody's interface: every option of a command, and the attention function of transformers.
MANY_PARAMETERS_ALLOWED = {
    PACKAGE / "cli.py",
    PACKAGE / "cli_eval.py",
    PACKAGE / "cli_models.py",
    PACKAGE / "cli_report.py",
    PACKAGE / "policy" / "attention.py",
}


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a file."""
    return [node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of a function's parameters, without self and cls."""
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def label(path: Path) -> str:
    """Path inside the repository, as the name of a test case."""
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", source_files(), ids=label)
def test_functions_are_short(path: Path) -> None:
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions(path) if node.end_lineno is not None}
    assert {name: lines for name, lines in long.items() if lines > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", [path for path in source_files() if path not in MANY_PARAMETERS_ALLOWED], ids=label)
def test_functions_take_few_parameters(path: Path) -> None:
    assert {node.name: parameters(node) for node in functions(path) if len(parameters(node)) > MAX_PARAMETERS} == {}


def test_files_are_short() -> None:
    lines = {
        label(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in tracked_files()
        if path.suffix == ".py"
    }
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}
