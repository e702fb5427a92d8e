"""Numbers read off a curve."""

from __future__ import annotations

import pytest

from dapo_cli.mechanisms.curves import crossing, height

CURVE = [
    {"step": 0, "updates": 0, "tokens": 0, "share": 0.1, "length": 9.0},
    {"step": 1, "updates": 8, "tokens": 100, "share": 0.3},
    {"step": 2, "updates": 8, "tokens": 300, "share": 0.3, "length": 5.0},
    {"step": 3, "updates": 16, "tokens": 400, "share": 0.7},
]


def test_a_level_is_crossed_on_the_line_between_two_points() -> None:
    assert crossing(CURVE, "share", 0.5, "updates") == pytest.approx(12.0)
    assert crossing(CURVE, "share", 0.5, "tokens") == pytest.approx(350.0)


def test_a_level_that_is_there_from_the_start_is_crossed_at_the_start() -> None:
    assert crossing(CURVE, "share", 0.05, "tokens") == 0.0


def test_a_level_that_is_never_reached_has_no_crossing() -> None:
    assert crossing(CURVE, "share", 0.9, "updates") is None


def test_points_without_a_value_are_passed_over() -> None:
    assert height(CURVE, "length", "tokens", 150) == 7.0


def test_beyond_its_end_a_curve_stays_where_it_was() -> None:
    assert height(CURVE, "share", "tokens", 1000) == 0.7


def test_a_step_without_an_update_counts_with_its_last_value() -> None:
    assert height(CURVE, "length", "updates", 8) == 5.0
