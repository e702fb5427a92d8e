import json
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.run.directory import RunDirectory, fresh
from dapo_cli.run.lock import lock_folder

RECIPE = "train:\n  steps: 3\n"


def make(path: Path) -> RunDirectory:
    return RunDirectory.create(path, RECIPE, {"contaminated": False, "first_prompt": "Was ist 3 + 4? 你好"})


def test_a_new_run_has_every_part_of_the_contract(tmp_path):
    run = make(tmp_path / "runs" / "demo")
    assert run.recipe_file.read_text() == RECIPE
    assert json.loads(run.manifest_file.read_text())["first_prompt"] == "Was ist 3 + 4? 你好"
    assert {entry.name for entry in run.path.iterdir() if entry.is_dir()} == {"rollouts", "checkpoints", "evals"}
    assert RunDirectory.open(run.path) == run


def test_an_existing_run_is_refused_with_every_way_on(tmp_path):
    make(tmp_path / "demo")
    with pytest.raises(UsageError, match="exists already") as error:
        make(tmp_path / "demo")
    assert all(fix in str(error.value.hint) for fix in ("--resume", "--fresh", "demo.old-<n>", "--run-dir"))


def test_an_empty_folder_and_a_killed_start_are_taken_over(tmp_path):
    make(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / ".manifest.json.partial-1").write_text("{")
    assert make(tmp_path).manifest()["contaminated"] is False


@pytest.mark.parametrize("name", ["thesis.tex", "checkpoints/step_2", ".hidden"])
def test_a_folder_with_other_files_is_never_written_to_nor_moved(tmp_path, name):
    folder = tmp_path / "home"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")
    with pytest.raises(UsageError, match="not a run"):
        make(folder)
    with pytest.raises(UsageError, match="not a run"):
        fresh(folder)
    assert (folder / name).read_text() == "mine"


def test_a_file_is_refused(tmp_path):
    (tmp_path / "demo").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        make(tmp_path / "demo")


def test_open_says_what_is_missing(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"no manifest\.json"):
        RunDirectory.open(tmp_path)


def test_fresh_moves_the_old_run_aside_and_counts(tmp_path):
    path = tmp_path / "demo{}"
    assert fresh(path) is None
    make(path)
    assert fresh(path) == tmp_path / "demo{}.old-1"
    make(path)
    assert fresh(path) == tmp_path / "demo{}.old-2"
    assert not path.exists()
    assert (tmp_path / "demo{}.old-1" / "recipe.yaml").read_text() == RECIPE


def test_fresh_leaves_a_run_alone_that_is_being_written(tmp_path):
    run = make(tmp_path / "demo")
    with run.lock(), pytest.raises(UsageError, match="another process"):
        fresh(run.path)
    assert run.recipe_file.exists()


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path):
    run = make(tmp_path / "demo")
    program = f"""
from pathlib import Path
from dapo_cli.run.lock import lock_folder
with lock_folder(Path({str(run.path)!r})):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"pid {other.pid} on ") as error, run.lock():
            pass
        assert f"kill {other.pid}" in error.value.hint
        other.kill()
        other.wait()
        with run.lock():
            assert (run.path / ".lock").read_text().split()[0] != str(other.pid)


def test_a_worker_forked_by_a_killed_run_does_not_hold_the_lock(tmp_path):
    program = f"""
import os, time
from pathlib import Path
from dapo_cli.run.lock import lock_folder
with lock_folder(Path({str(tmp_path)!r})):
    worker = os.fork()
    if worker == 0:
        print("ready", flush=True)
        input()
        os._exit(0)
    os.waitpid(worker, 0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        with lock_folder(tmp_path):
            pass
        parent.stdin.close()


def test_the_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path):
        raise ZeroDivisionError
    with lock_folder(tmp_path):
        pass


def test_a_file_system_without_locks_is_said_aloud(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    notes = []
    with lock_folder(tmp_path, notes.append):
        pass
    assert len(notes) == 1
    assert "no file locks" in notes[0]


def test_a_resume_is_recorded_and_a_changed_recipe_kept(tmp_path):
    run = make(tmp_path / "demo")
    run.record_resume(2, RECIPE, {"commit": "a"})
    run.record_resume(2, "train:\n  steps: 9\n", {"commit": "b"})
    assert run.manifest()["resumed"] == [{"step": 2, "commit": "a"}, {"step": 2, "commit": "b"}]
    assert run.recipe_file.read_text() == "train:\n  steps: 9\n"
    assert (run.path / "recipe.before-2.1.yaml").read_text() == RECIPE
    assert not (run.path / "recipe.before-2.2.yaml").exists()
