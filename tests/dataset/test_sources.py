from pathlib import Path
from typing import Any

import pytest
from small_recipe import small_recipe

from dapo_cli.dataset.settings import PartSettings, resolve
from dapo_cli.dataset.sources import Source, open_source
from dapo_cli.errors import UsageError


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def part(**dataset: Any) -> PartSettings:
    return resolve(small_recipe(**({"name": "mine", "heldout_problems": 0} | dataset))).parts[0]


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}\n")


def opened(**dataset: Any) -> Source:
    return open_source(part(**dataset), None)


def test_a_folder_is_all_its_data_files_in_order() -> None:
    touch("d/b.jsonl", "d/a.jsonl", "d/deep/c.jsonl", "d/README.md")
    assert [str(path) for path in opened(source="d").files] == ["d/a.jsonl", "d/b.jsonl", "d/deep/c.jsonl"]
    assert [str(path) for path in opened(source="d", files=("deep/*",)).files] == ["d/deep/c.jsonl"]


def test_a_folder_of_several_splits_is_not_mixed_up() -> None:
    touch("d/train-0.jsonl", "d/train-1.jsonl", "d/test-0.jsonl")
    with pytest.raises(UsageError, match=r"d: holds files of several splits \(test, train\)") as error:
        opened(source="d")
    assert 'dataset.files: ["**/train*"]' in str(error.value.hint)
    assert len(opened(source="d", files=("train*",)).files) == 2


@pytest.mark.parametrize(
    ("source", "complaint"),
    [("empty", r"empty: source: no \.jsonl"), ("no.jsonl", "no such file"), ("a/b.jsonl", "no such file")],
)
def test_a_source_that_is_not_there_is_named(source: str, complaint: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=complaint):
        opened(source=source)


def test_what_is_no_local_file_is_a_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from dapo_cli import hub

    asked = []

    def fetch(repo_id: str, revision: str | None, patterns: tuple[str, ...]) -> hub.Fetched:
        asked.append((repo_id, revision, patterns))
        return hub.Fetched(Path("snap"), (Path("snap/data.parquet"), Path("snap/README.md")), "c" * 40)

    monkeypatch.setattr(hub, "fetch_dataset_files", fetch)
    pinned = "a" * 40
    source = opened(source="org/name", revision=pinned, files=("en/*",))
    assert (source.files, source.description, source.notes) == (
        (Path("snap/data.parquet"),),
        f"org/name@{'c' * 40}",
        (),
    )
    (note,) = opened(source="org/name").notes
    assert "not pinned; read at commit cccc" in note
    open_source(part(name="dapo_math_17k"), None)
    open_source(part(name="dapo_math_17k"), "other/name")
    assert asked[0] == ("org/name", pinned, ("en/*",))
    assert asked[1] == ("org/name", None, ("**/*.jsonl", "**/*.json", "**/*.csv", "**/*.parquet"))
    assert asked[2][:2] == ("BytedTsinghua-SIA/DAPO-Math-17k", "65877096c24ffa7abc4e4fa5edb95cf3413a5674")
    assert asked[2][2] == ("data/dapo-math-17k.parquet",)
    assert asked[3][:2] == ("other/name", None)
