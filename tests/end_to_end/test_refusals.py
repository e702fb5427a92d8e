"""What the command line refuses, and what it then says; what a fork and a fresh start change."""

from __future__ import annotations

import json

import pytest
import torch
from commands import SMALL, repeatable_metrics, run_dapo, settings

pytestmark = pytest.mark.slow

TWO_STEPS = settings(*SMALL, "train.steps=2", "checkpoint.every=1", "eval.every=1")


@pytest.fixture(scope="module")
def parent(workspace):
    done = run_dapo(workspace, "train", "demo", "--run-dir", "runs/parent", *TWO_STEPS)
    assert done.returncode == 0, done.stderr
    return workspace / "runs" / "parent"


def test_a_fork_trains_with_its_own_optimizer_settings(parent, dapo, workspace):
    changed = ("train.weight_decay=0.0", "train.adam_beta2=0.95", "train.adam_epsilon=1e-6", "train.steps=2")
    done = dapo(
        "train", "demo", "--run-dir", "runs/other-adam", "--from", "runs/parent@1", *TWO_STEPS, *settings(*changed)
    )
    assert done.returncode == 0, done.stderr
    state = torch.load(workspace / "runs/other-adam/checkpoints/step_2/optimizer.pt", weights_only=True)
    group = state["param_groups"][0]
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.0, (0.9, 0.95), 1e-6)


def test_a_fork_with_other_data_starts_its_stream_anew_and_says_so(parent, dapo):
    done = dapo(
        "train",
        "demo",
        "--run-dir",
        "runs/reshuffled",
        "--from",
        "runs/parent@1",
        *TWO_STEPS,
        *settings("dataset.shuffle_seed=7"),
    )
    assert done.returncode == 0, done.stderr
    assert "the stream starts anew" in done.stderr


def test_a_fork_onto_itself_is_refused_and_nothing_is_moved(parent, dapo):
    done = dapo("train", "demo", "--run-dir", "runs/parent", "--fresh", "--from", "runs/parent@1", *TWO_STEPS)
    assert done.returncode == 2
    assert "is the run directory itself" in done.stderr
    assert (parent / "checkpoints" / "step_1").is_dir()


def test_fresh_keeps_the_old_run_aside(dapo, workspace):
    first = dapo("train", "demo", "--run-dir", "runs/renewed", *settings(*SMALL, "train.steps=1"))
    second = dapo("train", "demo", "--run-dir", "runs/renewed", "--fresh", *settings(*SMALL, "train.steps=1"))
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert "the old run is now" in second.stderr
    old, new = (repeatable_metrics(workspace / "runs" / name) for name in ("renewed.old-1", "renewed"))
    assert old == new


def test_a_device_that_is_not_there_leaves_no_run_directory(dapo, workspace):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = dapo("train", "demo", "--run-dir", "runs/no-gpu", *settings(*SMALL, "backend.device=cuda"))
    assert done.returncode == 2
    assert "torch sees no GPU" in done.stderr
    assert not (workspace / "runs/no-gpu").exists()


def test_an_evaluation_of_a_run_cannot_change_which_problems_were_held_out(parent, dapo):
    done = dapo("eval", "--run", "runs/parent", *settings("dataset.heldout_problems=1000"))
    assert done.returncode == 2
    assert "dataset.heldout_problems: an evaluation of a run can only change eval." in done.stderr


def test_more_held_out_problems_than_the_toy_model_left_untouched_are_refused(dapo):
    many = settings("dataset.heldout_problems=1500")
    assert dapo("prepare-data", "demo", *many).returncode == 0
    done = dapo("train", "demo", "--run-dir", "runs/too-many", *many)
    assert done.returncode == 2
    assert "warm start has seen 500 of the 1500 held-out problems" in done.stderr


def test_the_command_in_a_message_repeats_the_overrides(dapo):
    done = dapo("train", "demo", "--run-dir", "runs/x", *settings("dataset.heldout_problems=300"))
    assert done.returncode == 2
    assert "run: dapo prepare-data demo --set dataset.heldout_problems=300" in done.stderr


def test_data_prepared_elsewhere_is_found_and_checked(dapo, workspace):
    made = dapo("prepare-data", "demo", "--out", "elsewhere")
    assert made.stdout.splitlines()[-1] == "next: dapo train demo --set dataset.prepared=elsewhere"
    one_step = settings(*SMALL, "train.steps=1", "dataset.prepared=elsewhere")
    assert dapo("train", "demo", "--run-dir", "runs/elsewhere", *one_step).returncode == 0
    other = dapo("train", "demo", "--run-dir", "runs/other", *one_step, *settings("dataset.heldout_problems=100"))
    assert other.returncode == 2
    assert "was prepared with other settings" in other.stderr


def test_training_data_that_overlaps_the_benchmark_is_refused(dapo, workspace):
    rows = [{"problem": f"{a} {sign} {b}", "answer": "1"} for a in range(6) for b in range(6) for sign in "+-"]
    (workspace / "overlap.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = settings("dataset.name=overlapping", "dataset.source=overlap.jsonl", "dataset.heldout_problems=20")
    assert dapo("prepare-data", "demo", *own).returncode == 0
    done = dapo("train", "demo", "--run-dir", "runs/overlap", *own)
    assert done.returncode == 2
    assert "training problems are in the benchmark heldout" in done.stderr
    assert "allow_benchmark_overlap" in done.stderr


def test_after_a_resume_the_comparison_is_still_with_the_start(parent, dapo, workspace):
    done = dapo("train", "demo", "--run-dir", "runs/parent", "--resume", *TWO_STEPS, *settings("train.steps=3"))
    assert done.returncode == 0, done.stderr
    start = json.loads((parent / "evals/heldout_step_0/report.json").read_text())
    assert "before and after" in done.stdout
    assert f"{100 * start['avg@1']:.1f}%" in done.stdout


def test_the_model_card_states_scores_with_their_interval(parent, dapo, workspace):
    assert dapo("convert", "runs/parent@2", "--out", "carded").returncode == 0
    card = (workspace / "carded" / "README.md").read_text()
    assert "- heldout step 2: avg@1 " in card
    assert "% on these 20 problems; temperature 1.0, top_p 0.7)" in card
    assert len(card) < 2000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("eval.benchmark=nothing", "no card evals/nothing.yaml"),
        ("rollout.stop_token_ids=[99999]", "[99999] are outside the model's 113 tokens"),
        ("backend.threads=100000", "this process may use"),
        ("dataset.name=../../evil", "cannot be the name of a folder"),
        ("prompt.template_arguments={tokenize: true}", "tokenize cannot be set here"),
        ("rollout.stop_token_ids=[]", "nothing would end a response but its limit"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(dapo, workspace, override, message):
    done = dapo("train", "demo", "--run-dir", "runs/never", *settings(*SMALL, override))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert message in done.stderr
    assert not (workspace / "runs/never").exists()


def test_a_truncated_model_file_is_one_line(dapo, workspace):
    assert dapo("convert", "runs/renewed", "--out", "truncated").returncode == 0
    weights = workspace / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    done = dapo("train", "demo", "--run-dir", "runs/never", *settings(*SMALL, "model.path=./truncated"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "model.path: ./truncated: cannot be loaded" in done.stderr


def test_a_reader_that_stops_reading_costs_nothing(dapo, workspace):
    """`dapo train ... | head -1`: the pipe breaks after a line, and training goes on to the end."""
    before = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
    done = dapo("train", "demo", "--run-dir", "runs/broken-pipe", *settings(*SMALL, "train.steps=1"), before=before)
    assert "Traceback" not in done.stderr
    assert "training goes on without it" in done.stderr
    assert (workspace / "runs/broken-pipe/checkpoints/step_1").is_dir()


def test_a_second_process_cannot_resume_a_run_that_is_being_written(parent, dapo):
    from dapo_cli.run.directory import RunDirectory

    with RunDirectory.open(parent).lock():
        done = dapo("train", "demo", "--run-dir", "runs/parent", "--resume", *TWO_STEPS)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "is being written" in done.stderr or "process" in done.stderr


def test_a_lost_metrics_file_is_said_and_makes_no_new_baseline(parent, dapo, workspace):
    assert dapo("train", "demo", "--run-dir", "runs/lost", *TWO_STEPS).returncode == 0
    (workspace / "runs/lost/metrics.jsonl").unlink()
    done = dapo("train", "demo", "--run-dir", "runs/lost", "--resume", *TWO_STEPS, *settings("train.steps=3"))
    assert done.returncode == 0, done.stderr
    assert "is missing; the curve begins after step 2" in done.stderr
    assert [row["step"] for row in repeatable_metrics(workspace / "runs/lost")] == [3]
