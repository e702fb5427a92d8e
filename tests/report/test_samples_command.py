"""`dapo samples`: rollouts in the terminal."""

import json

import pytest
from fake_run import make_run, rollout
from typer.testing import CliRunner

from dapo_cli.cli import app
from dapo_cli.errors import UsageError
from dapo_cli.report.samples_command import Wanted, find_samples, sample_lines


@pytest.fixture
def run(tmp_path):
    lines = [rollout(f"p{n // 2}", n % 2, "right" if n % 2 else "wrong", tokens=n) for n in range(8)]
    lines[4] |= {"finish_reason": "length", "reward": -1.5, "overlong_penalty": -0.5}
    return make_run(tmp_path / "run", [], {3: lines[:2], 7: lines})


def found(run, **wanted):
    return [(row["problem_id"], row["sample"]) for row in find_samples(run, Wanted(**wanted))[1]]


def test_what_is_asked_for_is_found(run):
    assert find_samples(run, Wanted())[0] == 7
    assert found(run, limit=3) == [("p0", 0), ("p2", 0), ("p3", 1)]
    assert found(run, step=3) == [("p0", 0), ("p0", 1)]
    assert found(run, order="best", limit=2) == [("p0", 1), ("p1", 1)]
    assert found(run, order="worst", limit=2) == [("p2", 0), ("p3", 0)]
    assert found(run, order="longest", limit=1) == [("p3", 1)]
    assert found(run, outcome="wrong", problem="p1") == [("p1", 0)]
    assert found(run, truncated=True) == [("p2", 0)]


def test_what_is_not_there_says_what_is(run, tmp_path):
    with pytest.raises(UsageError, match="no rollouts of step 5") as caught:
        find_samples(run, Wanted(step=5))
    assert caught.value.hint == "there are those of 3, 7"
    with pytest.raises(UsageError, match="--order: want best, worst, longest, got odd"):
        find_samples(run, Wanted(order="odd"))
    with pytest.raises(UsageError, match="--outcome: want right, wrong, no_answer, verifier_error"):
        find_samples(run, Wanted(outcome="odd"))
    with pytest.raises(UsageError, match="no rollouts are stored"):
        find_samples(make_run(tmp_path / "none", [], {}), Wanted())


def test_a_long_text_is_cut_in_its_middle_and_control_characters_are_shown():
    row = rollout("p", 0, "wrong", response="a" * 600 + "\x1b[2J" + "b" * 2000)
    text = "\n".join(sample_lines(row, full=False))
    assert "[... 804 characters left out; --full shows them ...]" in text
    assert "\x1b" not in text
    assert "\\x1b[2J" in "\n".join(sample_lines(row, full=True))
    assert "--- reward -1 = score -1 + overlong penalty 0" in text


def test_the_command_prints_and_gives_json(run):
    shown = CliRunner().invoke(app, ["samples", str(run.path), "--limit", "2"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.endswith(f"{run.path}: 2 of 8 stored rollouts of step 7 that were asked for\n")
    as_json = json.loads(CliRunner().invoke(app, ["samples", str(run.path), "--step", "3", "--json"]).output)
    assert (as_json["step"], len(as_json["rollouts"])) == (3, 2)
