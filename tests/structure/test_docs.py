"""What the docs say can be typed: commands parse, links lead somewhere, recipe keys exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from pydantic import BaseModel
from source_tree import REPOSITORY

from dapo_cli.recipe.packaged import packaged_names
from dapo_cli.recipe.schema import Recipe

DOCS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
COMMANDS = [path for path in DOCS if path.parent.name == "commands"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SECTIONS = "|".join(Recipe.model_fields)
KEY = re.compile(rf"(?<![\w./-])((?:{SECTIONS})(?:\.[a-z][a-z0-9_]*)+)(?![\w/(])")
FILE_SUFFIXES = ("py", "md", "yaml", "yml", "json", "jsonl", "parquet")


def label(path: Path) -> str:
    """Path inside the repository, as the name of a test case."""
    return str(path.relative_to(REPOSITORY))


def fences(path: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of these languages."""
    for language, body in FENCE.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            yield body


def command_lines(path: Path) -> list[list[str]]:
    """Arguments of every `dapo ...` line of the shell blocks and of `dapo COMMAND ...` in inline code."""
    lines = [line for body in fences(path, "sh") for line in body.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in found if words and words[0] == "dapo"]


def parse(arguments: list[str]) -> None:
    """Let the command line parse the arguments without running the command."""
    from dapo_cli.cli import app

    group: Any = typer.main.get_command(app)
    context = group.make_context("dapo", list(arguments))
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, rest, parent=context)


def key_exists(key: str) -> bool:
    """Whether a dotted key is in the schema."""
    model: type[BaseModel] | None = Recipe
    for part in key.split("."):
        if model is None or part not in model.model_fields:
            return False
        model = nested_model(model.model_fields[part].annotation)
    return True


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """The section inside a field's type, if there is one."""
    candidates = (annotation, *get_args(annotation))
    return next((item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)), None)


def keys_in(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys of nested mappings."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict) and f"{prefix}{key}" != "prompt.template_arguments":
            yield from keys_in(value, f"{prefix}{key}.")


@pytest.mark.parametrize("path", [path for path in DOCS if command_lines(path)], ids=label)
def test_every_command_line_parses(path: Path) -> None:
    for arguments in command_lines(path):
        try:
            parse(arguments)
        except Exception as error:
            pytest.fail(f"{label(path)}: dapo {shlex.join(arguments)}: {error}")


@pytest.mark.parametrize("arguments", [["train", "demo", "--no-such-option"], ["no-such-command"], ["train"]])
def test_a_wrong_command_line_would_be_seen(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|missing"):
        parse(arguments)


@pytest.mark.parametrize("path", DOCS, ids=label)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("#"):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file
        assert linked.exists(), f"{label(path)}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{label(path)}: {target}"


@pytest.mark.parametrize("path", DOCS, ids=label)
def test_every_recipe_key_exists(path: Path) -> None:
    # A text block shows output, and the output may be about a key that does not exist.
    text = re.sub(r"^```text\n.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = {key for key in KEY.findall(text) if not key.endswith(FILE_SUFFIXES)}
    assert {key for key in named if not key_exists(key)} == set()


@pytest.mark.parametrize("path", [path for path in DOCS if list(fences(path, "yaml"))], ids=label)
def test_recipes_in_the_docs_have_only_keys_that_exist(path: Path) -> None:
    for body in fences(path, "yaml"):
        values = yaml.safe_load(body)
        if isinstance(values, dict) and values.keys() <= {*Recipe.model_fields, "extends"}:
            values.pop("extends", None)
            assert [key for key in keys_in(values) if not key_exists(key)] == []


def test_a_wrong_key_would_be_seen() -> None:
    assert key_exists("train.emulated_partition.ranks")
    assert not key_exists("train.clip_ratio_hgih")
    assert KEY.findall("set `train.no_such_key: 3`, see trainer.py and eval/heldout/avg@4") == ["train.no_such_key"]


def test_every_command_has_a_page() -> None:
    from dapo_cli.cli import app

    group: Any = typer.main.get_command(app)
    assert sorted(group.commands) == sorted(path.stem for path in COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=label)
def test_the_page_names_every_option(path: Path) -> None:
    from dapo_cli.cli import app

    group: Any = typer.main.get_command(app)
    options = {
        option for parameter in group.commands[path.stem].params for option in parameter.opts if option[0] == "-"
    }
    text = path.read_text(encoding="utf-8")
    assert {option for option in options if f"`{option}" not in text} == {"--help"} & options


def test_every_packaged_recipe_is_in_the_table() -> None:
    text = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    names = set(packaged_names())
    assert {name for name in names if f"`{name}`" not in text} == set()
