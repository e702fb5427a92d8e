import io
import os
import pty
import re
import select

import pytest
from rich.cells import cell_len

from dapo_cli.run.console import Console
from dapo_cli.run.view import Curve, View, headline, number, plain_line, render, sparkline

ROW = {
    "step": 3,
    "rollout/accuracy": 0.53125,
    "reward/mean": 0.0625,
    "rollout/response_length_mean": 38.24,
    "update/entropy": 0.412,
    "rollout/kept_groups": 8,
    "rollout/drawn_problems": 14,
    "eval/heldout/stderr@4": 0.01,
    "eval/heldout/avg@4": 0.325,
    "time/step": 3.2,
    "time/generate": 2.5,
    "time/update": 0.7,
}


def test_without_a_terminal_one_plain_line_per_step_and_nothing_else(capsys):
    stream = io.StringIO()
    with Console("demo", 9, stream) as console:
        console.note("first prompt: hi")
        console.stage("generate")
        console.evaluation("heldout", {"eval/heldout/avg@4": 0.3})
        console.step({"step": 0, "eval/heldout/avg@4": 0.3, "time/step": 1.0})
        console.step(ROW)
    assert stream.getvalue() == (
        "step 0/9  accuracy -  reward -  length -  entropy -  kept -  eval heldout avg@4 0.300  seconds 1.0\n"
        "step 3/9  accuracy 0.531  reward 0.062  length 38.2  entropy 0.412  kept 8/14  "
        "eval heldout avg@4 0.325  seconds 3.2\n"
    )
    assert capsys.readouterr().err == "first prompt: hi\n"


def test_fields_are_the_same_whatever_a_step_lacks():
    names = re.compile(r"(\w+) \S+(?: avg@4 \S+)?")
    assert names.findall(plain_line(ROW, 9)) == names.findall(plain_line({"step": 1}, 9))


def test_a_value_that_was_not_finite_is_shown_as_such():
    assert number({"update/entropy": None}, "update/entropy") == "nan"
    assert "entropy nan" in plain_line({**ROW, "update/entropy": None}, 9)


def test_headline_takes_the_average():
    assert headline(ROW) == "heldout avg@4 0.325"
    assert headline({"eval/heldout/avg@4": None, "eval/heldout/pass@4": 1.0}) is None


@pytest.mark.parametrize("value", [-0.5, 0.0, 0.999, 1.0, 1.5])
def test_a_sparkline_never_leaves_its_blocks(value):
    assert len(sparkline([value])) == 1


def full_view(**fields):
    view = View("demo", 100, **fields)
    for step in range(60):
        view.set_step({**ROW, "step": step, "rollout/accuracy": step / 60, "eval/heldout/avg@4": step / 60})
    view.stage, view.stage_started, view.seconds_left, view.stopping = "generate", 10.0, 7500.0, "Ctrl-C: " + "x" * 90
    return view


@pytest.mark.parametrize("columns", [80, 30])
def test_every_line_of_the_live_view_fits(columns):
    lines = render(full_view(), 22.0, columns).plain.split("\n")
    assert max(cell_len(line) for line in lines) <= columns


def test_what_the_live_view_shows():
    lines = render(full_view(), 22.0, 80).plain.split("\n")
    assert lines[0] == "demo  " + "━" * 14 + "─" * 10 + "  step 59/100  about 2 h 5 min left"  # 24 x 59 // 100
    assert lines[1].startswith("length          38.2  ")
    assert lines[1].endswith("  38.2 to 38.2")
    name, last, curve, low, _, high = lines[2].split()
    assert (name, last, low, high) == ("accuracy", "0.983", "0.000", "0.983")
    assert (len(curve), curve[0], curve[-1], sorted(curve)) == (42, "▁", "█", list(curve))
    assert lines[3].split()[:2] == ["entropy", "0.412"]
    assert lines[4].strip() == "probability        -"
    assert lines[5] == "reward 0.062  kept 8/14"
    assert lines[6] == "evaluation heldout avg@4 0.000 -> heldout avg@4 0.983"
    assert lines[7] == "last step: generate 2.5 s  update 0.7 s"
    assert lines[8] == "now: generate 12 s"
    assert lines[9].startswith("Ctrl-C")
    assert len(lines) <= 24


def test_a_curve_is_of_the_whole_run_however_long():
    curve = Curve()
    for step in range(5000):
        curve.add(float(step))
    assert 48 <= len(curve.points) < 96
    assert curve.points == sorted(curve.points)
    assert curve.points[0] < 100
    assert curve.points[-1] > 4800


def test_a_terminal_without_unicode_gets_ascii():
    assert render(full_view(ascii_only=True), 22.0, 80).plain.isascii()


def everything_written_to(terminal: int) -> str:
    """One read returns a page at most, and how often the view was drawn depends on the machine."""
    found = b""
    while select.select([terminal], [], [], 0.2)[0]:
        found += os.read(terminal, 65_536)
    return found.decode("utf-8")


def test_on_a_terminal_the_view_is_drawn_and_notes_stand_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        with Console("demo", 9, stream) as console:
            console.step({**ROW, "step": 2})
            console.note("a note with [brackets]")
            console.stage("generate")
            console.stopping("Ctrl-C: stopping")
            console.step(ROW)
        drawn = everything_written_to(master)
    os.close(master)
    assert "a note with [brackets]" in drawn
    assert "step 3/9" in drawn
    assert "left" in drawn
    assert "evaluation heldout avg@4 0.325" in drawn
    assert "Ctrl-C: stopping" in drawn
    assert "seconds 3.2" not in drawn
