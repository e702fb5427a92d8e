"""YAML 1.2 values with the line of every key.

Differs from `yaml.safe_load` where a recipe would be misread: `1e-6` is a number, `off` and `yes` are text, `010` is
ten, dates are text, and a key given twice, an infinity or a custom tag is an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from dapo_cli.errors import UsageError

KeyPath = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
CORE_SCHEMA: tuple[tuple[str, str, list[str]], ...] = (
    (_TAG + "null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    (_TAG + "bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    (_TAG + "int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    (
        _TAG + "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
)
"""Tag, pattern and first characters of the plain scalars that are not text (YAML 1.2, section 10.3)."""


class _Loader(yaml.SafeLoader):
    """SafeLoader's parser with the scalars of YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (typed by the base class)


for _tag, _pattern, _first in CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _first)


MOST_NODES = 100_000
"""Far above any recipe and far below what nested aliases can grow to."""


@dataclass(slots=True)
class Document:
    """A parsed file: its value, the line of every key (list items included), and what is wrong with it."""

    value: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[int, KeyPath, str]] = field(default_factory=list)
    """Line, key and message of everything that YAML allows and a recipe does not."""
    nodes: int = 0
    """Values read so far, aliases counted each time."""


def parse_yaml(text: str, source: str) -> Document:
    """Parse one YAML document; an empty one has the value None. `source` names it in messages.

    >>> parse_yaml("a:\\n  b: 1e-6\\n  c: off", "x.yaml").value
    {'a': {'b': 1e-06, 'c': 'off'}}

    Raises:
        UsageError: not valid YAML.
    """
    document = Document()
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            document.value = _value(node, (), document, frozenset())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        # PyYAML's "but found another document" goes on from its context.
        parts = [error.context, error.problem] if str(error.problem).startswith("but ") else [error.problem]
        raise UsageError(f"{source}:{line}: not valid YAML: {' '.join(str(part) for part in parts)}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested too deeply for a recipe") from error
    return document


def _value(node: yaml.Node, path: KeyPath, document: Document, parents: frozenset[int]) -> Any:
    line = node.start_mark.line + 1
    document.nodes += 1
    if document.nodes > MOST_NODES:
        raise UsageError(
            f"more than {MOST_NODES} values on line {line}: aliases that multiply have no place in a recipe"
        )
    if id(node) in parents:
        document.problems.append((line, path, "an alias that contains itself"))
        return None
    parents |= {id(node)}
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        return _mapping(node, path, document, parents)
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        items = []
        for index, item in enumerate(node.value):
            here = (*path, str(index))
            document.lines[here] = item.start_mark.line + 1
            items.append(_value(item, here, document, parents))
        return items
    try:
        return _scalar(node)
    except ValueError as error:
        document.problems.append((line, path, str(error)))
        return None


def _mapping(node: yaml.MappingNode, path: KeyPath, document: Document, parents: frozenset[int]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.problems.append((line, path, "a key must be a word, got a list or a section"))
            continue
        key = key_node.value
        here = (*path, key)
        if key in mapping:
            first = document.lines[here]
            document.problems.append((line, here, f"given twice, first on line {first}; keep one"))
            continue
        document.lines[here] = line
        mapping[key] = _value(value_node, here, document, parents)
    return mapping


def _scalar(node: yaml.Node) -> Any:
    """The value of a scalar node; ValueError says in plain words why there is none."""
    text = node.value
    if node.tag == _TAG + "str" and isinstance(text, str):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("text with half of a surrogate pair, which is not valid Unicode")
        return text
    if node.tag == _TAG + "null":
        return None
    if node.tag == _TAG + "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if node.tag == _TAG + "int":
        return _whole_number(text)
    if node.tag == _TAG + "float":
        return _finite_number(text)
    raise ValueError(f"the YAML tag {node.tag.replace(_TAG, '!!')} is not supported here")


def _whole_number(text: str) -> int:
    if len(text) > 4000:  # Python itself refuses to convert more digits
        raise ValueError(f"a number of {len(text)} digits")
    try:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    except ValueError as error:
        raise ValueError(f"not a whole number: {text!r}") from error


def _finite_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"not a finite number: {text!r}")
    return number
