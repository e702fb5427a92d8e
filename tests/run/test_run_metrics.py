import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.errors import DapoError
from dapo_cli.run.metrics import Metrics, combine, ordered, read, truncate_after


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write_steps(path, *steps):
    metrics = Metrics(path)
    for step in steps:
        with metrics.step(step):
            metrics.add({"rollout/accuracy": step / 10})


def steps_of(path):
    return [row["step"] for row in read(path)]


def test_updates_of_a_step_become_one_value_by_the_ending(path):
    metrics = Metrics(path)
    with metrics.step(1):
        metrics.add(
            {"update/entropy": 1.0, "update/skipped_count": 1, "rollout/logprob_mismatch_max": 0.25, "updates": 4}
        )
        metrics.add(
            {"update/entropy": 4.0, "update/skipped_count": 1, "rollout/logprob_mismatch_max": 0.5, "updates": 5}, 2.0
        )
    (row,) = read(path)
    assert row == metrics.last
    assert row["update/entropy"] == 3.0  # (1 x 1 + 2 x 4) / (1 + 2)
    assert row["update/skipped_count"] == 2
    assert row["rollout/logprob_mismatch_max"] == 0.5
    assert row["updates"] == 5
    assert row["time/step"] > 0
    assert row["perf/peak_memory_bytes"] > 2**20


@pytest.mark.parametrize(
    ("key", "expected"),
    [("a/x_max", 3), ("a/x_min", 1), ("a/x_max_kept", 3), ("a/x_count", 6), ("time/x", 6), ("updates", 2), ("a/x", 2)],
)
def test_rule_by_ending(key, expected):
    assert combine(key, [(1, 1.0), (3, 1.0), (2, 1.0)]) == expected


def test_a_nan_among_updates_is_never_hidden():
    for key in ("a/x_max", "a/x_min", "a/x_count", "a/x"):
        assert math.isnan(combine(key, [(1.0, 1.0), (math.nan, 1.0), (2.0, 1.0)]))


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 10)), min_size=1, max_size=8), st.floats(0.1, 10))
def test_the_mean_depends_on_the_ratio_of_weights_only(pairs, scale):
    scaled = [(value, weight * scale) for value, weight in pairs]
    assert combine("a/x", pairs) == pytest.approx(combine("a/x", scaled), abs=1e-9)


def test_key_order():
    keys = ["perf/b", "time/step", "zebra/x", "eval/h/avg@4", "update/entropy", "loss/policy", "rollout/b", "rollout/a"]
    assert list(ordered(dict.fromkeys(["updates", *keys, "note", "step"]))) == [
        *("step", "updates", "note", "rollout/a", "rollout/b", "loss/policy", "update/entropy", "eval/h/avg@4"),
        *("zebra/x", "time/step", "perf/b"),
    ]


def test_the_order_of_adding_does_not_show_in_the_file(path, tmp_path):
    other = tmp_path / "other.jsonl"
    for target, values in ((path, {"a/x": 1, "b/y": 2}), (other, {"b/y": 2, "a/x": 1})):
        metrics = Metrics(target)
        with metrics.step(1):
            metrics.add(values)
    assert list(read(path)[0]) == list(read(other)[0])


def test_nan_and_infinity_are_null_in_strict_json_and_said_aloud(path):
    notes = []
    metrics = Metrics(path, notes.append)
    with metrics.step(3):
        metrics.add({"update/grad_norm": math.inf, "loss/policy": np.float32("nan")})
    row = json.loads(path.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert row["update/grad_norm"] is None
    assert row["loss/policy"] is None
    assert sorted(notes) == [
        "step 3: loss/policy is nan; null in metrics.jsonl",
        "step 3: update/grad_norm is inf; null in metrics.jsonl",
    ]


def test_whole_numbers_stay_whole_and_numpy_becomes_plain(path):
    metrics = Metrics(path)
    with metrics.step(1):
        metrics.add({"rollout/drawn_problems": np.int64(7), "rollout/kept_groups": 5, "a/x": np.float32(0.5)})
    assert '"rollout/drawn_problems": 7,' in path.read_text()
    assert '"rollout/kept_groups": 5,' in path.read_text()
    assert read(path)[0]["a/x"] == 0.5


def test_stage_times_add_up_and_those_between_steps_go_to_the_next_line(path, monkeypatch):
    clock = iter([0.0, 1.5, 10.0, 11.0, 13.0, 20.0, 24.0, 30.0, 40.0, 41.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    metrics = Metrics(path)
    with metrics.time("save"):
        pass  # 0.0 to 1.5
    with metrics.step(1):  # 10 to 30
        metrics.add({"rollout/response_tokens": 60})
        with metrics.time("generate"):
            pass  # 11 to 13
        with metrics.time("generate"):
            pass  # 20 to 24
    with metrics.step(2):
        pass
    first, second = read(path)
    assert (first["time/save"], first["time/generate"], first["time/step"]) == (1.5, 6.0, 20.0)
    assert first["perf/generated_tokens_per_second"] == 10.0  # 60 / 6
    assert "time/generate" not in second


def test_a_step_that_raises_leaves_no_line(path):
    metrics = Metrics(path)

    def interrupted():
        with metrics.step(1):
            metrics.add({"a/x": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read(path) == []
    with metrics.step(1):
        metrics.add({"a/y": 1})
    assert "a/x" not in read(path)[0]


def test_no_step_twice(path):
    write_steps(path, 0, 1, 2)
    for metrics in (Metrics(path), Metrics(path)):
        with pytest.raises(ValueError, match="step 2 comes after step 2"), metrics.step(2):
            pass
    assert steps_of(path) == [0, 1, 2]


def test_adding_outside_of_a_step_or_with_no_weight_is_an_error(path):
    metrics = Metrics(path)
    with pytest.raises(RuntimeError, match="outside"):
        metrics.add({"a/x": 1})
    with metrics.step(1), pytest.raises(ValueError, match="above 0"):
        metrics.add({"a/x": 1}, 0)


def test_resume_moves_later_and_torn_lines_aside(path):
    write_steps(path, 0, 1, 2, 3)
    with path.open("a") as file:
        file.write('{"step": 4, "rollout/acc')
    assert steps_of(path) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="torn"):
        Metrics(path)
    notes = []
    aside = truncate_after(path, 2, notes.append)
    assert aside.name == "metrics.after-2.1.jsonl"
    assert [line[:10] for line in aside.read_text().splitlines()] == ['{"step": 3', '{"step": 4']
    assert steps_of(path) == [0, 1, 2]
    assert notes == [f"{path}: 2 lines after step 2 moved to metrics.after-2.1.jsonl"]
    write_steps(path, 3)
    assert truncate_after(path, 2).name == "metrics.after-2.2.jsonl"
    assert steps_of(path) == [0, 1, 2]


def test_resume_without_a_checkpoint_moves_every_line(path):
    assert truncate_after(path, None) is None
    write_steps(path, 0, 1)
    assert truncate_after(path, None).name == "metrics.after-start.1.jsonl"
    assert path.read_text() == ""
    write_steps(path, 0)
    assert steps_of(path) == [0]


def test_resume_with_nothing_to_move_changes_nothing(path):
    write_steps(path, 0, 1)
    before = path.read_bytes()
    assert truncate_after(path, 1, pytest.fail) is None
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["metrics.jsonl"]


def test_a_missing_line_of_the_checkpoints_step_is_said_aloud(path):
    write_steps(path, 0, 1)
    notes = []
    truncate_after(path, 5, notes.append)
    assert "no line of step 5" in notes[0]


@pytest.mark.parametrize("line", ["{", "[1]", '{"a": 1}', '{"step": "x"}'])
def test_a_broken_line_is_named(path, line):
    path.write_text('{"step": 0}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(DapoError, match=re.escape(f"{path}:2: not a JSON object with a step")):
        read(path)


def test_documented_prefix_order_is_the_one_used():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert "`rollout/ reward/ advantage/ loss/ update/ sync/ eval/`" in text
