"""The statements that make up a recipe: the files of an `extends` chain, then the overrides of the command line."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.recipe.origins import Origin, PlacedProblem, shown, usage_error
from dapo_cli.recipe.packaged import find_recipe
from dapo_cli.recipe.positions import Document, KeyPath, parse_yaml
from dapo_cli.recipe.schema import Recipe

LOADER_KEYS = ("extends", "resolved")
"""Top-level keys that are not part of the recipe: its parent, and the mark of a dumped recipe (see `dump.py`)."""


@dataclass(slots=True)
class Layer:
    """Nested values and where each key was stated."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[PlacedProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    source: str
    document: Document

    def error(self, key: str, message: str, hint: str | None = None) -> UsageError:
        line = self.document.lines.get((key,), 1)
        return usage_error([PlacedProblem(Origin("file", self.source, line), key, message)], hint)


def file_layers(path: Path) -> list[Layer]:
    """The layers of a recipe file, the root of its `extends` chain first.

    Raises:
        UsageError: an unreadable or empty file, invalid YAML, or an `extends` that leads nowhere or back to itself.
    """
    chain = [_read(path)]
    while (reference := chain[-1].document.value.get("extends")) is not None:
        chain.append(_parent(chain, reference))
    return [_file_layer(file, number) for number, file in enumerate(reversed(chain), start=1)]


def _read(path: Path) -> _File:
    source = shown(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"{source}: cannot be read: {error.strerror or error}") from error
    document = parse_yaml(text, source)
    sections = ", ".join(f"{name}:" for name in Recipe.model_fields)
    if document.value is None and not document.problems:
        raise UsageError(f"{source}: the file is empty; a recipe has the sections {sections} or extends another")
    if not isinstance(document.value, dict):
        raise UsageError(f"{source}:1: expected the sections {sections} or extends, got {kind_of(document.value)}")
    return _File(path, source, document)


def _parent(chain: list[_File], reference: Any) -> _File:
    """The file that the last of `chain` extends."""
    child = chain[-1]
    if not isinstance(reference, str) or not reference:
        raise child.error("extends", f"expected the path or packaged name of one recipe, got {kind_of(reference)}")
    try:
        path, _ = find_recipe(reference, child.path.parent)
    except UsageError as error:
        raise child.error("extends", error.message, error.hint) from error
    visited = [file.path.resolve() for file in chain]
    if path.resolve() in visited:
        names = [file.source for file in chain[visited.index(path.resolve()) :]]
        raise child.error("extends", f"a recipe cannot extend itself: {' -> '.join([*names, shown(path)])}")
    return _read(path)


def _file_layer(file: _File, number: int) -> Layer:
    number = 0 if file.document.value.get("resolved") is True else number
    layer = Layer(data={key: value for key, value in file.document.value.items() if key not in LOADER_KEYS})
    for path, line in file.document.lines.items():
        layer.origins[path] = Origin("file", file.source, line, number)
    for line, path, message in file.document.problems:
        layer.problems.append(PlacedProblem(Origin("file", file.source, line, number), ".".join(path), message))
    if file.document.value.get("resolved") not in (None, True):
        layer.problems.append(PlacedProblem(layer.origins[("resolved",)], "resolved", "expected true"))
    _refuse_non_sections(layer)
    return layer


def override_layer(override: str, number: int) -> Layer:
    """The layer of one `--set section.key=value`; the value is read as YAML."""
    origin = Origin("set", f"--set {override}", None, number)
    layer = Layer()
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or len(path) < 2 or not all(path):
        layer.problems.append(PlacedProblem(origin, "", "expected section.key=value, such as train.steps=10"))
        return layer
    try:
        document = parse_yaml(text, str(origin))
    except UsageError:
        layer.problems.append(PlacedProblem(origin, ".".join(path), "the value is not valid YAML; quote it"))
        return layer
    for _, inner, message in document.problems:
        layer.problems.append(PlacedProblem(origin, ".".join((*path, *inner)), message))
    layer.data = {path[-1]: document.value}
    for part in reversed(path[:-1]):
        layer.data = {part: layer.data}
    layer.origins = {path: origin, **{(*path, *inner): origin for inner in document.lines}}
    return layer


def _refuse_non_sections(layer: Layer) -> None:
    """Take sections that are not mappings out of `layer`, so that each is reported once and at its own line."""
    for name in Recipe.model_fields:
        if name in layer.data and not isinstance(layer.data[name], dict):
            got = kind_of(layer.data.pop(name))
            message = f"expected a section (lines of key: value, indented under {name}:), got {got}"
            layer.problems.append(PlacedProblem(layer.origins[(name,)], name, message))


def merge(layers: Sequence[Layer]) -> Layer:
    """All layers as one: mappings key by key, anything else replaced whole, the last one wins."""
    merged = Layer()
    for layer in layers:
        _overlay(merged, layer, layer.data, merged.data, ())
        merged.problems.extend(layer.problems)
        merged.notes.extend(layer.notes)
    return merged


def _overlay(merged: Layer, layer: Layer, top: dict[str, Any], base: dict[str, Any], path: KeyPath) -> None:
    for key, value in top.items():
        here = (*path, key)
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            if here in layer.origins:
                merged.origins[here] = layer.origins[here]
            _overlay(merged, layer, value, base[key], here)
            continue
        base[key] = copy.deepcopy(value)
        for known in [known for known in merged.origins if known[: len(here)] == here]:
            del merged.origins[known]
        merged.origins.update({known: at for known, at in layer.origins.items() if known[: len(here)] == here})


def kind_of(value: Any) -> str:
    """A value in the words of a message.

    >>> kind_of("3"), kind_of(None), kind_of([1]), kind_of(True)
    ("'3'", 'null', 'a list', 'true')
    """
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
