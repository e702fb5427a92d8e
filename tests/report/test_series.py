"""The points of the curves."""

import math

import pytest
from fake_run import row

from dapo_cli.report.series import AXES, CHARTS, MAX_POINTS, axes_of, curves, smoothed


def test_every_axis_grows_with_what_it_counts():
    rows = [row(1), row(2, **{"rollout/response_tokens": None, "time/step": 72.0}), row(3)]
    assert axes_of(rows) == {
        "step": [1.0, 2.0, 3.0],
        "updates": [2, 4, 6],
        "tokens": [640, 640, 1280],
        "hours": [pytest.approx(0.01), pytest.approx(0.03), pytest.approx(0.04)],
    }


def test_a_short_run_keeps_every_step():
    rows = [row(step, **{"update/entropy": None if step == 2 else step / 10}) for step in (1, 2, 3)]
    found = curves(rows, ["update/entropy", "no/such"])
    assert list(found["curves"]) == ["update/entropy"]
    curve = found["curves"]["update/entropy"]
    assert (curve["at"], curve["mean"], curve["low"], curve["high"]) == ([0, 2], *[[0.1, 0.3]] * 3)
    assert set(found["axes"]) == set(AXES)
    assert found["steps_per_point"] == 1


def test_a_long_run_keeps_the_extremes_of_every_bin():
    rows = [{"step": step, "x": 5.0 if step == 1234 else 1.0} for step in range(1, 5001)]
    found = curves(rows, ["x"])
    curve = found["curves"]["x"]
    assert len(curve["at"]) == MAX_POINTS
    assert found["steps_per_point"] == 5
    assert max(curve["high"]) == 5.0
    assert curve["mean"][246] == 1.8  # steps 1231 to 1235
    assert found["axes"]["step"][-1] == 5000


def test_smoothing_forgets_nothing_at_its_start_and_passes_gaps():
    assert smoothed([2.0, 2.0, None, 2.0]) == [2.0, 2.0, 2.0, 2.0]
    assert smoothed([None, 4.0]) == [None, 4.0]
    keep = math.exp(-1.0)
    first, second = smoothed([0.0, 1.0])
    assert (first, second) == (0.0, pytest.approx((1 - keep) / ((1 - keep) * (1 + keep))))


def test_every_charted_key_is_documented():
    from test_rollout_metrics import documented_patterns

    patterns = documented_patterns()
    keys = [key for chart in CHARTS for key in chart.keys]
    assert [key for key in keys if not any(pattern.fullmatch(key) for pattern in patterns)] == []
