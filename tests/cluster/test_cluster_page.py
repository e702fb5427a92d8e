"""docs/cluster.md against the script, the recipes it tabulates, and the options of the installed ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dapo_cli.recipe.cluster import cluster_shape
from dapo_cli.recipe.loading import load_recipe

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
SCRIPT = (REPOSITORY / "cluster" / "dapo.sbatch").read_text(encoding="utf-8")


def table(first_heading: str) -> list[list[str]]:
    """Cells of the rows below the heading of a table that begins so."""
    lines = PAGE[PAGE.index(f"| {first_heading} |") :].split("\n\n", 1)[0].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def test_the_page_names_every_setting_of_the_script_and_its_default():
    read = dict(re.findall(r'^(DAPO_\w+)="\$\{\1:-([^}]*)\}"', SCRIPT, re.MULTILINE))
    named = {row[0]: row[2] for row in table("variable")[1:]}
    assert named.keys() == read.keys()
    for name in ("DAPO_RAY_PORT", "DAPO_WAIT_SECONDS"):
        assert named[name] == read[name]
    assert read["DAPO_STATE"] == f"$PWD/{named['DAPO_STATE']}"


def test_the_page_gives_the_margin_before_the_time_limit():
    seconds = int(re.search(r"^#SBATCH --signal=B:USR1@(\d+)$", SCRIPT, re.MULTILINE).group(1))
    assert f"{seconds // 60} minutes before the time limit" in PAGE


@pytest.mark.parametrize("column", [2, 3, 4])
def test_the_table_of_keys_gives_the_values_of_its_recipes(column):
    heading, *rows = table("key")
    recipe = load_recipe(heading[column].split("`")[1], []).recipe
    shape = cluster_shape(recipe)
    for row in rows:
        section, name = row[0].split(".")
        value, told = getattr(getattr(recipe, section), name), row[column].replace("`", "")
        if told in ("not used", "one process", "one engine"):
            assert recipe.backend.kind == "local"
        elif "null" in told:
            assert value is None
            assert told in (f"{getattr(shape, name, None)}, by null", "null: over all")
        else:
            written = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value).removesuffix(".0")
            assert told == written


@pytest.mark.parametrize(
    ("command", "text"), [("start", SCRIPT), ("start", PAGE), ("job submit", PAGE)], ids=["script", "page", "jobs"]
)
def test_options_of_ray_exist_in_the_installed_one(command, text):
    scripts = pytest.importorskip("ray.scripts.scripts", reason="ray is not installed")
    group = scripts.cli
    for word in command.split():
        group = group.commands[word]
    known = {option for parameter in group.params for option in parameter.opts}
    used = set()
    for call in re.findall(rf"ray {command} ((?:[^\n`]|\\\n)*)", text.replace('"${start[@]}"', "ray start")):
        used |= set(re.findall(r"(?<!\S)(--[a-z][a-z-]+)", call.split(" -- ")[0]))
    assert used
    assert used <= known
