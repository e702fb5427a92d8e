"""Whether a checkpoint fits the disk."""

import shutil
from types import SimpleNamespace

import pytest

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.recipe.schema_run import Checkpoint
from dapo_cli.run.checkpoints import Keep, save_checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.disk import check_room, expected_bytes, first_bytes, human_size, refuse_full_disk


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes of every disk."""

    def set_free(number):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=number))

    return set_free


def test_the_next_checkpoint_takes_what_the_newest_takes_else_12_bytes_a_parameter(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "", {})
    assert expected_bytes(run, 1_000_000) == first_bytes(1_000_000) == 13_000_000
    save_checkpoint(run, 1, lambda folder: (folder / "weights").write_bytes(b"0" * 5_000) and None, {}, Keep("all"))
    assert expected_bytes(run, 1_000_000) == 5_000 + len("{}")
    (run.checkpoints / "step_2").mkdir()  # without a manifest it tells nothing
    assert expected_bytes(run, 1_000_000) == 5_000 + len("{}")


def test_a_save_that_does_not_fit_is_refused_before_it_begins(tmp_path, free):
    free(389_000_000_000)
    with pytest.raises(DapoError, match=r"a checkpoint takes 390 GB, and 389 GB are free; nothing was written"):
        refuse_full_disk(tmp_path, 390_000_000_000)
    free(390_000_000_000)
    refuse_full_disk(tmp_path, 390_000_000_000)


def test_training_does_not_start_where_no_checkpoint_fits(tmp_path, free):
    notes = []
    free(11_000_000)
    with pytest.raises(UsageError, match=r"takes 0\.013 GB, and 0\.011 GB are free on its disk"):
        check_room(tmp_path / "not" / "yet", 1_000_000, Checkpoint(), notes.append)
    free(13_000_000 * 4)
    check_room(tmp_path / "not" / "yet", 1_000_000, Checkpoint(keep_last=2, keep_best=1), notes.append)
    assert notes == []
    free(13_000_000 * 4 - 1)
    check_room(tmp_path / "not" / "yet", 1_000_000, Checkpoint(keep_last=2, keep_best=1), notes.append)
    assert "4 checkpoints of 0.013 GB are there at once at most" in notes[0]
    check_room(tmp_path / "not" / "yet", 1_000_000, Checkpoint(keep_last="all"), notes.append)
    # At a resume three of the four are there.
    free(13_000_000)
    check_room(tmp_path, 1_000_000, Checkpoint(keep_last=2, keep_best=1), notes.append, there=3)
    assert len(notes) == 1


def test_sizes_are_never_written_with_an_exponent(tmp_path, free):
    assert [human_size(size) for size in (999, 999_499, 999_999_999, 1_234_567_000_000_000)] == [
        "999 B",
        "999 kB",
        "1 GB",
        "1235 TB",
    ]
    free(1_234_000_000_000)
    with pytest.raises(DapoError, match="takes 1560 GB, and 1234 GB are free"):
        refuse_full_disk(tmp_path, 1_560_000_000_000)
