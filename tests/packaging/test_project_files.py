"""The version and the files a release needs agree with one another."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import dapo_cli

REPOSITORY = Path(__file__).resolve().parents[2]


def test_one_version_everywhere() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert project["version"] == dapo_cli.__version__ == citation["version"]


def test_the_changelog_says_what_happened_to_the_numbers() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        assert "### Numerics" in release, release.splitlines()[0]


def test_the_citation_names_the_paper() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    paper = citation["preferred-citation"]
    assert paper["title"] == "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"
    assert {"type": "other", "value": "arXiv:2503.14476"}.items() <= paper["identifiers"][0].items()


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "README.zh-CN.md", "SECURITY.md", "CONTRIBUTING.md"])
def test_the_file_is_there_and_says_something(name: str) -> None:
    assert len((REPOSITORY / name).read_text(encoding="utf-8")) > 500


TARGETS = "setup setup-cpu demo smoke test lint format lock wheel-check bench clean"


@pytest.mark.parametrize("target", TARGETS.split())
def test_the_makefile_describes_the_target(target: str) -> None:
    assert re.search(rf"^{target}:.*## \S", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_ci_reads_nothing_from_standard_input_and_ends_with_tests_and_smoke() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert script.rstrip().splitlines()[-2:] == ["make test", "make smoke"]


def test_hints_never_install_the_package_of_that_name_from_the_index() -> None:
    # The name belongs to another project there: a checkout is installed as `.` or `.[extra]`.
    from_the_index = re.compile(r"pip install\s+(?:-\S+\s+)*[\"']?dapo\b")
    assert from_the_index.search("pip install --upgrade 'dapo[vllm]'")
    assert not from_the_index.search("pip install -e '.[vllm]'")
    texts = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("recipes/**/*.yaml")]
    texts += (REPOSITORY / "dapo_cli").rglob("*.py")
    assert [str(path) for path in texts if from_the_index.search(path.read_text(encoding="utf-8"))] == []
