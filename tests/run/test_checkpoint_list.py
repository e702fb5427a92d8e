"""`dapo checkpoints`: what is there, and what is wrong with it."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dapo_cli.cli import app
from dapo_cli.run.checkpoint_list import checkpoint_table, list_checkpoints
from dapo_cli.run.checkpoints import Keep, save_checkpoint
from dapo_cli.run.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    """Steps 10 to 40: best, changed, without its manifest, newest; and a save of step 50 that was killed."""
    run = RunDirectory.create(tmp_path / "demo", "", {})
    for step, score in ((10, 0.9), (20, 0.95), (30, None), (40, 0.5)):
        metric = None if score is None else ("eval/heldout/avg@4", score)
        write = lambda folder: (folder / "weights").write_bytes(b"0" * 2_000) and None  # noqa: E731
        save_checkpoint(run, step, write, {}, Keep("all"), metric)
    (run.checkpoints / "step_20" / "weights").write_bytes(b"1" * 2_000)
    (run.checkpoints / "step_30" / "manifest.json").unlink()
    (run.checkpoints / ".step_50.partial-7").mkdir()
    (run.checkpoints / ".step_50.partial-7" / "weights").write_bytes(b"0" * 30)
    return run


def test_every_folder_is_listed_with_what_is_wrong(run):
    listed = {each.name: each for each in list_checkpoints(run, check_hashes=True)}
    assert list(listed) == ["step_10", "step_20", "step_30", "step_40", ".step_50.partial-7"]
    assert listed["step_10"].metric == ("eval/heldout/avg@4", 0.9)
    assert (listed["step_10"].trouble, listed["step_10"].marks) == (None, ("best",))
    assert listed["step_20"].trouble == "weights has changed since it was saved (sha256)"
    assert listed["step_30"].trouble == "no manifest.json, so its save did not finish"
    assert (listed["step_40"].trouble, listed["step_40"].marks) == (None, ("newest",))
    assert listed[".step_50.partial-7"].trouble == "a save that has not finished"
    assert listed[".step_50.partial-7"].size_bytes == 30


def test_without_hashes_only_sizes_are_compared(run):
    listed = {each.step: each for each in list_checkpoints(run, check_hashes=False)}
    assert (listed[20].trouble, listed[20].marks) == (None, ("best",))


def test_the_table_fits_80_columns(run):
    out = io.StringIO()
    Console(file=out, width=80).print(checkpoint_table(list_checkpoints(run, check_hashes=True)))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[0] == "10"
    assert "complete, best" in lines[1]
    assert "NOT COMPLETE: weights has changed" in lines[2]


def test_the_command_says_what_it_compared(run):
    shown = CliRunner().invoke(app, ["checkpoints", str(run.path)])
    assert shown.exit_code == 0
    assert "5 checkpoints" in shown.output
    assert "sizes compared; score is eval/heldout/avg@4" in shown.output
    as_json = json.loads(CliRunner().invoke(app, ["checkpoints", str(run.path), "--json", "--hashes"]).output)
    assert as_json["compared"] == "sizes and hashes"
    assert as_json["total_bytes"] == sum(each["size_bytes"] for each in as_json["checkpoints"]) > 8_000
    assert [each["step"] for each in as_json["checkpoints"]] == [10, 20, 30, 40, 50]


def test_a_replaced_checkpoint_is_listed_until_it_is_removed(run):
    (run.checkpoints / ".step_40.replaced-7").mkdir()
    listed = {each.name: each for each in list_checkpoints(run, check_hashes=False)}
    assert listed[".step_40.replaced-7"].trouble == "replaced by a newer save"
    assert listed["step_40"].marks == ("newest",)


def test_a_checkpoint_whose_replacement_never_came_counts_as_the_checkpoint_it_is(run):
    (run.checkpoints / "step_10").rename(run.checkpoints / ".step_10.replaced-7")
    listed = {each.name: each for each in list_checkpoints(run, check_hashes=True)}
    assert "step_10" not in listed
    assert listed[".step_10.replaced-7"].marks == ("best", "the next save puts it back")


def test_no_run_and_no_checkpoints_say_what_to_do(tmp_path):
    run = RunDirectory.create(tmp_path / "empty", "", {})
    shown = CliRunner().invoke(app, ["checkpoints", str(run.path)])
    assert shown.output == (
        f"{run.path}: no checkpoints yet; `dapo train` writes one every checkpoint.every steps and at the end\n"
    )
    missing = CliRunner().invoke(app, ["checkpoints", str(tmp_path / "none")])
    assert missing.exception.hint == "`dapo train RECIPE` makes one in runs/"
