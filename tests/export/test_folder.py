import pytest

from dapo_cli.errors import UsageError
from dapo_cli.export.folder import folder_in_the_making


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_is_there_when_the_body_has_ended(tmp_path):
    for destination in (tmp_path / "empty", tmp_path / "a" / "b"):
        if destination.name == "empty":
            destination.mkdir()
        with folder_in_the_making(destination) as partial:
            (partial / "file").write_text("x")
            assert not destination.exists() or names(destination) == []
        assert names(destination) == ["file"]
    assert names(tmp_path) == ["a", "empty"]


def test_what_is_interrupted_leaves_nothing(tmp_path):
    def interrupted():
        with folder_in_the_making(tmp_path / "out") as partial:
            (partial / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_not_taken_over(tmp_path):
    (tmp_path / ".out.partial" / "folder").mkdir(parents=True)
    (tmp_path / ".out.partial" / "old").write_text("old")
    with folder_in_the_making(tmp_path / "out") as partial:
        (partial / "new").write_text("new")
    assert names(tmp_path / "out") == ["new"]


def test_two_at_once_do_not_mix(tmp_path):
    with folder_in_the_making(tmp_path / "out") as partial:
        (partial / "file").write_text("first")
        with (
            pytest.raises(UsageError, match="another process is writing"),
            folder_in_the_making(tmp_path / "out"),
        ):
            pass
        assert (partial / "file").read_text() == "first"
    assert names(tmp_path / "out") == ["file"]


def test_destinations_that_hold_something_are_refused_and_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with (
            pytest.raises(UsageError, match=r"--out: .* not an empty folder"),
            folder_in_the_making(tmp_path / name),
        ):
            pass
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"
