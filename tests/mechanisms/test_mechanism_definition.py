"""A mechanism of one's own: both recipes, and every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.mechanisms.definition import load_definition
from dapo_cli.recipe.keys import recipe_differences
from dapo_cli.recipe.packaged import packaged_names

MECHANISM = """\
technique: A technique
paper: section 0
prediction: It helps.
metric: {value: share, until: 0.5}
sign: lower
seeds: 8
task:
  kind: rare_branch
  branch_probability: 0.01
extends: toy/naive_grpo
baseline:
  train: {clip_ratio_high: 0.2}
treatment:
  train: {clip_ratio_high: 0.28}
"""


def write(folder: Path, old: str = "", new: str = "") -> Path:
    """The mechanism above with one text replaced."""
    assert old in MECHANISM
    path = folder / "mine.yaml"
    path.write_text(MECHANISM.replace(old, new, 1) if old else MECHANISM, encoding="utf-8")
    return path


def test_a_mechanism_gives_both_recipes(tmp_path: Path) -> None:
    definition = load_definition(write(tmp_path))
    differences = recipe_differences(definition.baseline, definition.treatment)
    assert [(each.key, each.old, each.new) for each in differences] == [("train.clip_ratio_high", 0.2, 0.28)]


def test_mechanisms_are_no_recipes_of_runs() -> None:
    assert [name for name in packaged_names() if name.startswith("mechanisms/")] == []


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("sign:", "sing:", 5, "unknown key; did you mean sign?"),
        ("until: 0.5", "untl: 0.5", 4, "unknown key; did you mean until?"),
        ("branch_probability:", "branch_probabilty:", 9, "unknown key; did you mean branch_probability?"),
        ("{clip_ratio_high: 0.28}", "{clip_ratio_hgih: 0.28}", 14, "unknown key; did you mean clip_ratio_high?"),
        ("paper: section 0\n", "", 1, "paper: required key is missing"),
        ("sign: lower", "sign: smaller", 5, "'lower' or 'higher'"),
        ("{value: share, until: 0.5}", "{value: entropy}", 4, "entropy needs the section measure"),
        ("until: 0.5", "at_step: 1000", 4, "at_step is beyond train.steps"),
        ("until: 0.5", "until: 0.5, at_step: 3", 4, "until and at_step exclude each other"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_definition(write(tmp_path, old, new))
    found = [each for each in caught.value.message.splitlines() if words in each]
    assert found, caught.value.message
    assert f"mine.yaml:{line}: " in found[0]
