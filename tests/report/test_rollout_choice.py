"""Which rollouts are worth reading, and how often they reflect."""

import pytest
from fake_run import make_run, rollout

from dapo_cli.errors import DapoError
from dapo_cli.report.reflection import first_reflection
from dapo_cli.report.rollout_choice import read_rollouts, spread


def labels(reading):
    return {(chosen.step, chosen.row["problem_id"], chosen.row["sample"]): chosen.labels for chosen in reading.chosen}


def test_the_extremes_of_a_step_are_chosen_with_their_reasons(tmp_path):
    lines = [
        rollout("p", 0, "right", tokens=9),
        rollout("p", 1, "wrong", overlong_penalty=-0.5, reward=-1.5, tokens=30, finish_reason="length"),
        rollout("p", 2, "no_answer"),
        rollout("p", 3, "verifier_error"),
        rollout("p", 4, "right", response="Wait, 3 + 4 is 7.\nAnswer: 7"),
        rollout("p", 5, "right"),
    ]
    reading = read_rollouts(make_run(tmp_path / "run", [], {3: lines}), 100)
    assert labels(reading) == {
        (3, "p", 0): ("best",),
        (3, "p", 1): ("worst", "longest", "truncated"),
        (3, "p", 2): ("no answer",),
        (3, "p", 3): ("verifier error",),
        (3, "p", 4): ("reflects",),
    }
    assert reading.rollouts == 6
    [point] = reading.reflections
    assert (point.step, point.responses, point.reflecting) == (3, 6, 1)
    assert point.interval.low == pytest.approx(0.0301, abs=1e-3)  # Wilson, 1 of 6
    assert point.interval.high == pytest.approx(0.5635, abs=1e-3)


def test_a_group_that_turns_is_shown_before_and_after(tmp_path):
    right, wrong = [rollout("q", n, "right") for n in range(3)], [rollout("q", n, "wrong") for n in range(3)]
    mixed = [rollout("q", 0, "wrong"), *right[1:]]
    reading = read_rollouts(make_run(tmp_path / "run", [], {1: right, 2: mixed, 5: wrong, 9: right}), 400)
    flipped = [(c.step, c.row["outcome"]) for c in reading.chosen if "flipped" in c.labels]
    assert flipped == [(2, "right"), (5, "wrong"), (5, "wrong"), (9, "right")]


def test_the_number_is_bounded_and_steps_are_spread(tmp_path):
    files = {
        step: [rollout(f"p{n}", 0, "right" if (step + n) % 2 else "wrong") for n in range(4)] for step in range(1, 61)
    }
    run = make_run(tmp_path / "run", [], files)
    reading = read_rollouts(run, 40)
    assert 20 <= len(reading.chosen) <= 40
    assert {reading.chosen[0].step, reading.chosen[-1].step} == {1, 60}
    assert [(c.step, c.row) for c in read_rollouts(run, 40).chosen] == [(c.step, c.row) for c in reading.chosen]
    assert len(reading.reflections) == 60


def test_damage_is_named(tmp_path):
    run = make_run(tmp_path / "run", [], {2: [rollout("p", 0, "right")]})
    with (run.rollouts / "step_2.jsonl").open("a") as file:
        file.write("torn")
    with pytest.raises(DapoError, match=r"step_2\.jsonl:2: not valid JSON"):
        read_rollouts(run, 10)


def test_no_rollouts_are_none(tmp_path):
    reading = read_rollouts(make_run(tmp_path / "run", [], {}), 10)
    assert (reading.chosen, reading.reflections, reading.rollouts) == ([], [], 0)


def test_spread_keeps_the_ends():
    assert spread(list(range(10)), 4) == [0, 3, 6, 9]
    assert spread([1, 2, 3], 1) == [3]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Let me check: 3 + 4", "re-check"),
        ("we verify this now", "re-check"),
        ("LET'S TRY AGAIN", "go back"),
        ("Hold on. That", "reconsider"),
        ("所以等于7。等等，应该是8", "reconsider"),
        ("重新计算一下", "go back"),
        ("验证一下结果", "re-check"),
        ("The waiter awaits", None),
        ("recheckers", None),
        ("", None),
    ],
)
def test_phrases_are_whole_words_of_either_case(text, kind):
    found = first_reflection(text)
    assert (found and found[0]) == kind
    if found:
        assert text[found[1] : found[2]]
