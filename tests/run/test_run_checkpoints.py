import json
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.run.checkpoints import (
    Keep,
    find_checkpoint,
    newest_complete,
    parse_run_reference,
    save_checkpoint,
    saved_steps,
)
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.integrity import find_damage


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "demo", "", {})


def save(run, step, text="weights", keep_last="all", state=None, best=0, score=None):
    def write(folder: Path):
        (folder / "model").mkdir()
        (folder / "model" / "a.safetensors").write_text(text)

    metric = None if score is None else ("eval/heldout/avg@4", score)
    return save_checkpoint(run, step, write, state or {"step": step}, Keep(keep_last, best), metric)


def test_what_was_saved_is_found(run):
    assert newest_complete(run) is None
    state = {"step": 3, "stream": {"epoch": 1, "at": [4, 5]}, "rate": 0.1 + 0.2, "wandb_id": None, "odd": float("inf")}
    save(run, 3, state=state)
    found = newest_complete(run)
    assert (found.step, found.path, found.state) == (3, run.path / "checkpoints" / "step_3", state)
    assert (found.path / "model" / "a.safetensors").read_text() == "weights"
    listed = json.loads((found.path / "manifest.json").read_text())["files"]
    assert listed["model/a.safetensors"]["size_bytes"] == 7
    assert set(listed) == {"model/a.safetensors", "state.json"}


def test_newest_is_by_number_not_by_name_or_time(run):
    for step in (9, 100, 20):
        save(run, step)
    assert newest_complete(run).step == 100


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda f: (f / "manifest.json").unlink(), r"no manifest\.json"),
        (lambda f: (f / "manifest.json").write_text("{"), r"manifest\.json cannot be read"),
        (lambda f: (f / "manifest.json").write_text('{"step": 2, "files": 3}'), "cannot be read"),
        (lambda f: (f / "model" / "a.safetensors").unlink(), "is missing"),
        (lambda f: (f / "model" / "a.safetensors").write_text("weight"), "has 6 bytes, should have 7"),
        (lambda f: (f / "model" / "a.safetensors").write_text("wEights"), "has changed"),
        (lambda f: (f / "state.json").write_text('{"step": 9}'), "has changed"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_the_reason(run, harm, reason):
    save(run, 1)
    save(run, 2)
    harm(run.checkpoints / "step_2")
    notes = []
    assert newest_complete(run, notes.append).step == 1
    assert len(notes) == 1
    assert "step_2: skipped: " in notes[0]
    with pytest.raises(DapoError, match=reason):
        find_checkpoint(run, 2)


def test_a_renamed_checkpoint_is_not_taken_for_another_step(run):
    save(run, 1)
    (run.checkpoints / "step_1").rename(run.checkpoints / "step_7")
    assert newest_complete(run, lambda text: None) is None


def test_rotation_keeps_the_newest_and_never_counts_damaged_ones(run):
    for step in (1, 2, 3):
        save(run, step)
    (run.checkpoints / "step_3" / "model" / "a.safetensors").unlink()
    save(run, 4, keep_last=2)
    assert set(saved_steps(run)) == {2, 4}
    save(run, 5, keep_last=1)
    assert set(saved_steps(run)) == {5}


def test_the_best_stay_besides_the_newest(run):
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.7), (4, None), (5, 0.9)):
        save(run, step, keep_last=1, best=2, score=score)
    assert set(saved_steps(run)) == {2, 5}
    save(run, 6, keep_last=1, best=1, score=0.1)
    assert set(saved_steps(run)) == {5, 6}  # of equals the later one
    (run.checkpoints / "step_5" / "model" / "a.safetensors").unlink()
    save(run, 7, keep_last=1, best=1, score=0.05)
    assert set(saved_steps(run)) == {6, 7}  # a damaged one is never the best


def test_a_checkpoint_without_the_metric_is_never_the_best(run):
    for step in (1, 2, 3):
        save(run, step, keep_last=1, best=2)
    assert set(saved_steps(run)) == {3}


def save_worth(run, step, metric, best):
    save_checkpoint(run, step, lambda folder: (folder / "a").write_text("x") and None, {}, Keep(1, best), metric)


def test_values_of_another_metric_are_not_compared(run):
    save_worth(run, 1, ("rollout/response_length_mean", 300.0), 2)
    save_worth(run, 2, None, 2)
    assert set(saved_steps(run)) == {1, 2}
    save_worth(run, 3, ("eval/heldout/avg@4", 0.6), 2)
    assert set(saved_steps(run)) == {3}  # by what is measured now, the long responses of step 1 are worth nothing


def test_an_evaluation_with_other_samples_is_the_same_metric(run):
    save_worth(run, 1, ("eval/heldout/avg@4", 0.6), 1)
    save_worth(run, 2, ("eval/heldout/avg@16", 0.5), 1)
    assert set(saved_steps(run)) == {1, 2}


def test_a_checkpoint_that_is_replaced_is_worth_what_its_new_save_says(run):
    save_worth(run, 1, ("eval/heldout/avg@4", 0.6), 1)
    save_worth(run, 2, ("eval/heldout/avg@4", 0.9), 1)
    save_worth(run, 2, ("eval/heldout/avg@4", 0.1), 1)
    save_worth(run, 3, ("eval/heldout/avg@4", 0.2), 1)
    assert set(saved_steps(run)) == {3}


def test_rotation_keeps_the_checkpoint_just_saved_before_later_ones(run):
    for step in (10, 60):
        save(run, step)
    save(run, 20, keep_last=1)
    assert set(saved_steps(run)) == {20, 60}


def test_saving_a_step_again_replaces_it(run):
    save(run, 2, text="old")
    save(run, 2, text="new")
    assert (newest_complete(run).path / "model" / "a.safetensors").read_text() == "new"
    assert [entry.name for entry in run.checkpoints.iterdir()] == ["step_2"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("cuda")])
def test_a_save_that_fails_leaves_what_was_there(run, error):
    save(run, 1)

    def write(folder: Path):
        (folder / "half.bin").write_text("x")
        raise error

    expected = DapoError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        save_checkpoint(run, 2, write, {}, Keep("all"))
    assert [entry.name for entry in run.checkpoints.iterdir()] == ["step_1"]
    assert newest_complete(run).step == 1


@pytest.mark.parametrize(
    ("state", "where"),
    [({"a": {1: 2}}, "state.a: keys must be text, got 1"), ({"a": [0, {2}]}, r"state\.a\[1\]: .* got set")],
)
def test_state_that_json_would_change_is_refused(run, state, where):
    with pytest.raises(TypeError, match=where):
        save(run, 1, state=state)


def killed_saves(folder, *arguments):
    """What killed_saves.py found after each kill."""
    program = [sys.executable, str(Path(__file__).with_name("killed_saves.py")), str(folder), *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("step", [2, 3])
def test_killed_at_any_file_operation_the_best_checkpoint_stays(tmp_path, step):
    outcomes = killed_saves(tmp_path, step, 1, 1)
    assert len(outcomes) > 20, "the save was killed at too few points"
    for outcome in outcomes:
        assert outcome["best"] == ["eval/heldout/avg@4", 0.9], outcome
        assert outcome["sealed_but_damaged"] == [], outcome
        assert outcome["newest"] in {2, step}, outcome
        assert outcome["names_after"] == ["step_1", f"step_{step}"], outcome


@pytest.mark.parametrize("step", [2, 3])
def test_killed_at_any_file_operation_a_complete_checkpoint_is_found(tmp_path, step):
    outcomes = killed_saves(tmp_path, step, 2, 0)
    assert len(outcomes) > 20, "the save was killed at too few points"
    assert [outcome["finished"] for outcome in outcomes] == [False] * (len(outcomes) - 1) + [True]
    for outcome in outcomes:
        assert outcome["newest"] in {2, step}, outcome
        assert outcome["sealed_but_damaged"] == [], outcome
        assert outcome["version"] == outcome["weights"], outcome
        assert outcome["newest"] == 2 or outcome["version"] == "new", outcome
        assert outcome["again"] == "again", outcome
        assert outcome["names_after"] == [f"step_{step - 1}", f"step_{step}"], outcome
    assert {"old", "new"} == {outcome["version"] for outcome in outcomes}
    assert any(name.startswith(f".step_{step}.partial") for outcome in outcomes for name in outcome["names"])


def test_a_replacement_killed_between_its_renames_is_found_and_put_back(run):
    save(run, 1)
    save(run, 2, text="old")
    (run.checkpoints / "step_2").rename(run.checkpoints / ".step_2.replaced-7")
    assert newest_complete(run).path.name == ".step_2.replaced-7"
    save(run, 3, keep_last=2)
    assert sorted(entry.name for entry in run.checkpoints.iterdir()) == ["step_2", "step_3"]


def test_an_unfinished_save_is_named(run):
    (run.checkpoints / ".step_4.partial-9").mkdir()
    notes = []
    assert newest_complete(run, notes.append) is None
    assert notes == [f"{run.checkpoints}/.step_4.partial-9: skipped: a save that did not finish"]


def test_find_checkpoint_names_the_steps_there_are(run):
    with pytest.raises(UsageError, match="no complete checkpoint; got none"):
        find_checkpoint(run, None)
    save(run, 20)
    save(run, 40)
    assert find_checkpoint(run, None).step == 40
    assert find_checkpoint(run, 20).step == 20
    with pytest.raises(UsageError, match="no checkpoint of step 30") as error:
        find_checkpoint(run, 30)
    assert error.value.hint == "checkpoints there: 20, 40"


def test_sizes_alone_do_not_see_a_changed_byte(run):
    folder = save(run, 1).path
    (folder / "model" / "a.safetensors").write_text("wEights")
    assert find_damage(folder, 1, check_hashes=False) is None
    assert find_damage(folder, 1, check_hashes=True) is not None


def test_run_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_run_reference("runs/demo@40") == (Path("runs/demo"), 40)
    assert parse_run_reference("runs/demo") == (Path("runs/demo"), None)
    Path("a@1").mkdir()
    assert parse_run_reference("a@1") == (Path("a@1"), None)
    assert parse_run_reference("a@1@2") == (Path("a@1"), 2)


@pytest.mark.parametrize("text", ["runs/demo@", "runs/demo@last", "runs/demo@-1", "@40", "runs/demo@٣", ""])
def test_bad_run_references(text):
    with pytest.raises(UsageError):
        parse_run_reference(text)
