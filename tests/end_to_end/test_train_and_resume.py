"""Training by the command line: a run repeats exactly, also when it is killed at any moment and resumed."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from commands import SMALL, repeatable_metrics, settings

pytestmark = pytest.mark.slow

KILL = "os.kill(os.getpid(), signal.SIGKILL)"

# Each kills the process in the fourth step, after checkpoint 2 and the third step's line; the save is that of step 4.
MOMENTS = {
    "mid-rollout": f"""
import os, signal, json
from dapo_cli.run import recorder
from dapo_cli.rollout import hf_engine
step = hf_engine._Decoding.step
def kill(self, position, find_stop):
    if position == 7 and os.path.exists('{{run}}/rollouts/step_3.jsonl'):
        {KILL}
    return step(self, position, find_stop)
hf_engine._Decoding.step = kill
""",
    "mid-update": f"""
import os, signal
from dapo_cli.backend import local
update, calls = local.update, []
def kill(*arguments):
    calls.append(None)
    result = update(*arguments)
    if len(calls) == 7:
        {KILL}
    return result
local.update = kill
""",
    "mid-save": f"""
import os, signal
from dapo_cli.backend.local import LocalBackend
save = LocalBackend.save
def kill(self, folder):
    save(self, folder)
    if 'step_4' in folder.name:
        (folder / 'optimizer.pt').write_bytes(b'torn')
        {KILL}
LocalBackend.save = kill
""",
}


@pytest.fixture(scope="module")
def undisturbed(workspace):
    from commands import run_dapo

    done = run_dapo(workspace, "train", "demo", "--run-dir", "runs/undisturbed", *settings(*SMALL))
    assert done.returncode == 0, done.stderr
    return workspace / "runs" / "undisturbed", done


def test_a_second_run_gives_the_same_metrics_and_weights(undisturbed, dapo, workspace):
    run, _ = undisturbed
    done = dapo("train", "demo", "--run-dir", "runs/again", *settings(*SMALL))
    assert done.returncode == 0, done.stderr
    assert repeatable_metrics(workspace / "runs/again") == repeatable_metrics(run)
    for name in ("model.safetensors",):
        one, two = (path / "checkpoints/step_6" / name for path in (run, workspace / "runs/again"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed_gives_the_numbers_of_a_run_that_was_never_stopped(undisturbed, dapo, workspace, moment):
    run, _ = undisturbed
    target = f"runs/{moment}"
    before = MOMENTS[moment].replace("{run}", target)
    killed = dapo("train", "demo", "--run-dir", target, *settings(*SMALL), before=before)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(repeatable_metrics(workspace / target)) < len(repeatable_metrics(run))
    done = dapo("train", "demo", "--run-dir", target, "--resume", *settings(*SMALL))
    assert done.returncode == 0, done.stderr
    assert "resuming at step 2" in done.stderr
    assert repeatable_metrics(workspace / target) == repeatable_metrics(run)
    one, two = (path / "checkpoints/step_6/model.safetensors" for path in (run, workspace / target))
    assert one.read_bytes() == two.read_bytes()
    assert sorted(path.name for path in (workspace / target / "checkpoints").iterdir()) == ["step_4", "step_6"]


def test_resume_starts_at_zero_when_there_is_nothing_and_says_when_a_run_is_finished(undisturbed, dapo, workspace):
    run, _ = undisturbed
    shutil.rmtree(workspace / "runs/from-zero", ignore_errors=True)
    two_steps = settings(*SMALL, "train.steps=2", "eval.every=null")
    done = dapo("train", "demo", "--run-dir", "runs/from-zero", "--resume", *two_steps)
    assert done.returncode == 0, done.stderr
    again = dapo("train", "demo", "--run-dir", "runs/from-zero", "--resume", *two_steps)
    assert again.returncode == 0, again.stderr
    assert "finished, 2 steps are done" in again.stdout
    longer = dapo("train", "demo", "--run-dir", "runs/from-zero", "--resume", *settings(*SMALL))
    assert longer.returncode == 0, longer.stderr
    policy = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in repeatable_metrics(run)]
    resumed = repeatable_metrics(workspace / "runs/from-zero")
    assert [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in resumed] == policy


def test_an_existing_run_is_refused_with_the_ways_on(undisturbed, dapo):
    done = dapo("train", "demo", "--run-dir", "runs/undisturbed", *settings(*SMALL))
    assert done.returncode == 2
    assert "this run exists already" in done.stderr
    assert "--resume" in done.stderr
    assert "--fresh" in done.stderr


def test_a_resume_that_changes_the_training_is_refused_by_name(undisturbed, dapo):
    changed = settings(*SMALL, "train.learning_rate=1e-3", "rollout.seed=5")
    done = dapo("train", "demo", "--run-dir", "runs/undisturbed", "--resume", *changed)
    assert done.returncode == 2
    assert "train.learning_rate: 0.0001 in the run, 0.001 now" in done.stderr
    assert "rollout.seed: 0 in the run, 5 now" in done.stderr


def test_a_fork_starts_from_a_checkpoint_with_other_settings(undisturbed, dapo, workspace):
    changed = settings(*SMALL, "train.learning_rate=1e-3", "train.steps=5")
    done = dapo("train", "demo", "--run-dir", "runs/fork", "--from", "runs/undisturbed@4", *changed)
    assert done.returncode == 0, done.stderr
    run, _ = undisturbed
    fork = repeatable_metrics(workspace / "runs/fork")
    assert fork[:5] == repeatable_metrics(run)[:5]
    assert fork[5]["update/learning_rate"] == 1e-3
    assert json.loads((workspace / "runs/fork/manifest.json").read_text())["forked_from"] == "runs/undisturbed@4"


def test_sigterm_saves_and_exits_130_and_a_resume_gives_the_same_numbers(undisturbed, dapo, workspace):
    run, _ = undisturbed
    before = MOMENTS["mid-rollout"].replace("SIGKILL", "SIGTERM").replace("{run}", "runs/sigterm")
    stopped = dapo("train", "demo", "--run-dir", "runs/sigterm", *settings(*SMALL), before=before)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped by SIGTERM" in stopped.stdout
    assert (workspace / "runs/sigterm/checkpoints/step_3").is_dir()
    done = dapo("train", "demo", "--run-dir", "runs/sigterm", "--resume", *settings(*SMALL))
    assert done.returncode == 0, done.stderr
    assert repeatable_metrics(workspace / "runs/sigterm") == repeatable_metrics(run)


def test_stop_after_seconds_saves_and_exits_0(dapo, workspace):
    done = dapo("train", "demo", "--run-dir", "runs/limit", *settings(*SMALL, "train.stop_after_seconds=0.01"))
    assert done.returncode == 0, done.stderr
    assert "train.stop_after_seconds" in done.stdout
    assert "--resume" in done.stdout


def test_what_is_shown_at_the_start_and_at_the_end(undisturbed):
    run, done = undisturbed
    assert "Remember to put your answer on its own line" in done.stderr
    assert "a response ends at ['<|im_end|>']" in done.stderr
    assert "pre-flight: 4 problems" in done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == 7
    assert "before and after" in done.stdout
    assert done.stdout.splitlines()[-1] == "next: dapo eval --run runs/undisturbed"
    prompt = json.loads((run / "manifest.json").read_text())["first_prompt"]
    assert prompt["text"].endswith("<|im_start|>assistant\n")


def test_unprepared_data_is_refused_with_the_command(tmp_path):
    from commands import run_dapo

    done = run_dapo(tmp_path, "train", "demo")
    assert done.returncode == 2
    assert "the data is not prepared" in done.stderr
    assert "run: dapo prepare-data demo" in done.stderr
    assert not (tmp_path / "runs" / "demo").exists()


def test_prompt_and_response_beyond_the_models_positions_are_refused_at_the_line(dapo):
    done = dapo("train", "demo", "--run-dir", "runs/long", *settings("rollout.max_response_tokens=500"))
    assert done.returncode == 2
    assert "rollout.max_response_tokens" in done.stderr
    assert "toy has 512 positions" in done.stderr
