"""What the structure tests read: the source files, their imports and their functions, without importing them."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "dapo_cli"


@dataclass(frozen=True)
class Import:
    """One imported module, as `module` names it, and whether importing the file runs it."""

    importer: str
    module: str
    line: int
    at_import_time: bool


def module_name(path: Path) -> str:
    """Dotted name of a source file of the package."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_files() -> list[Path]:
    """Python files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


@cache
def syntax_tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def modules() -> frozenset[str]:
    """Names of all modules and packages of ours."""
    return frozenset(module_name(path) for path in source_files())


def is_type_checking(node: ast.If) -> bool:
    """Whether the branch exists for type checkers only."""
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(path: Path) -> list[Import]:
    """Every import of a file except those for type checkers only; `from package import module` names the module."""
    found: list[Import] = []

    def visit(node: ast.AST, at_import_time: bool) -> None:
        names: list[str] = []
        if isinstance(node, ast.If) and is_type_checking(node):
            return
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            source = node.module or ""
            inner = [f"{source}.{alias.name}" for alias in node.names]
            names = [name for name in inner if name in modules()] or [source]
        found.extend(Import(module_name(path), name, node.lineno, at_import_time) for name in names)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, at_import_time and not inside)

    visit(syntax_tree(path), True)
    return found


def tracked_files() -> list[Path]:
    """Files that are in the repository, by git."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
    return [REPOSITORY / name for name in listing.stdout.split("\0") if name and (REPOSITORY / name).is_file()]
