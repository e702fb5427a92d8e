"""A recipe as YAML: what a run directory keeps as `recipe.yaml`."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dapo_cli.recipe.positions import CORE_SCHEMA
from dapo_cli.recipe.schema import Recipe


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else (`off`, `1e6`)."""

    def ignore_aliases(self, data: Any) -> bool:
        """Equal values are written out each time."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds the line breaks of Unicode (U+0085, U+2028) in plain and single-quoted text, and reads spaces back.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _text)
for _tag, _pattern, _first in CORE_SCHEMA:
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), _first)


def to_yaml(recipe: Recipe) -> str:
    """Every key of `recipe` as YAML that `load_recipe` reads back as an equal recipe.

    `resolved: true` says that no key was stated by hand: keys that another key switches off are no contradiction.
    """
    values = {"resolved": True, **recipe.model_dump(mode="json")}
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
