import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from groups import make_group, make_rollout

from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.samples import choose_groups, move_rollouts_after, save_rollouts, step_files

GROUPS = [make_group(index, [make_rollout(True), make_rollout(False)]) for index in range(6)]


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "demo", "", {})


@pytest.mark.parametrize(
    ("kept", "sampled", "expected"),
    [
        ([1, 3, 5], 4, [0, 1, 2, 3]),  # two kept, two not
        ([1, 3, 5], 3, [0, 1, 3]),  # the odd one is kept
        ([1, 3, 5], 1, [1]),
        ([5], 4, [0, 1, 2, 5]),  # kept is short
        ([0, 1, 2, 3, 4], 4, [0, 1, 2, 5]),  # not kept is short
        ([], 2, [0, 1]),
        ([0, 1, 2, 3, 4, 5], 3, [0, 1, 2]),
        ([1, 3, 5], 99, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_sample_shows_kept_and_dropped_groups_in_submission_order(kept, sampled, expected):
    chosen = choose_groups(GROUPS, [GROUPS[index] for index in kept], "sample", sampled)
    assert [group.index for group in chosen] == expected


def test_all_and_none():
    assert choose_groups(GROUPS, GROUPS[:1], "all", 1) == GROUPS
    assert choose_groups(GROUPS, GROUPS[:1], "none", 1) == []


def test_one_object_per_rollout(run):
    group = make_group(4, [make_rollout(True, 3, penalty=-0.25), make_rollout(False, 2, finish="length")])
    metrics = save_rollouts(run, 7, [group], [group], lambda ids: f"您好 {len(ids)}")
    path = run.rollouts / "step_7.jsonl"
    assert metrics == {"rollout/saved_bytes": path.stat().st_size}
    assert "您好" in path.read_text(encoding="utf-8")
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == {
        "problem_id": "id4",
        "group": 4,
        "sample": 0,
        "kept": True,
        "prompt": "您好 5",
        "response": "Answer: 7",
        "ground_truth": "7",
        "prediction": "7",
        "outcome": "right",
        "verifier_error": None,
        "score": 1.0,
        "overlong_penalty": -0.25,
        "reward": 0.75,
        "tokens": 3,
        "finish_reason": "stop",
        "policy_version": 3,
    }
    assert (second["sample"], second["outcome"], second["finish_reason"]) == (1, "wrong", "length")


def test_saved_bytes_counts_every_step(run):
    one = save_rollouts(run, 1, GROUPS[:1], [], str)["rollout/saved_bytes"]
    assert save_rollouts(run, 2, GROUPS[:1], [], str)["rollout/saved_bytes"] == 2 * one
    assert save_rollouts(run, 3, [], [], str)["rollout/saved_bytes"] == 2 * one
    assert sorted(step_files(run)) == [1, 2]


def test_a_resume_moves_later_files_aside(run):
    for step in (1, 2, 10):
        save_rollouts(run, step, GROUPS[:1], [], str)
    aside = move_rollouts_after(run, 1, lambda text: None)
    assert aside == run.path / "rollouts.after-1.1"
    assert sorted(path.name for path in aside.iterdir()) == ["step_10.jsonl", "step_2.jsonl"]
    assert sorted(step_files(run)) == [1]
    assert move_rollouts_after(run, 1, pytest.fail) is None
    notes = []
    assert move_rollouts_after(run, None, notes.append).name == "rollouts.after-start.1"
    assert notes == [f"{run.rollouts}: 1 files after step start moved to rollouts.after-start.1"]
