"""What is said of a run's metrics."""

import pytest
from fake_run import row
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_recipe

from dapo_cli.report.findings import find, first_step_where, trend

RECIPE = tiny_recipe()
KEYS = [key for key in row(1) if key not in ("step",)]


def kinds(rows):
    return [finding.kind for finding in find(rows, RECIPE)]


def run_of(steps=40, **curves):
    """Healthy rows whose values are replaced by functions of the step."""
    return [row(step, **{key.replace("__", "/"): f(step) for key, f in curves.items()}) for step in range(1, steps + 1)]


def test_a_healthy_run_has_nothing_but_progress():
    assert kinds(run_of()) == ["progress"]
    flat = run_of(rollout__accuracy=lambda step: 0.5)
    assert kinds(flat[:20]) == ["nothing"]


def test_no_steps_and_few_steps_say_nothing_of_trends():
    assert kinds([]) == ["empty"]
    assert kinds([row(0)]) == ["empty"]
    assert kinds(run_of(4)) == ["nothing"]


@pytest.mark.parametrize(
    ("curves", "kind", "severity"),
    [
        ({"update__entropy": lambda s: 0.5 / s}, "entropy_low", "bad"),
        ({"update__entropy": lambda s: 0.5 + 0.1 * s}, "entropy_rising", "bad"),
        ({"rollout__informative_fraction": lambda s: 0.5 / s}, "filter_starving", "bad"),
        ({"rollout__kept_groups": lambda s: 2}, "small_steps", "watch"),
        ({"rollout__truncated_fraction": lambda s: 0.02 * s}, "truncation", "bad"),
        ({"rollout__no_answer_fraction": lambda s: 0.9}, "no_answer", "watch"),
        ({"reward__verifier_errors": lambda s: int(s == 7)}, "verifier_errors", "watch"),
        ({"rollout__logprob_mismatch_mean": lambda s: 1e-4 * s * s}, "mismatch", "bad"),
        ({"update__skipped_count": lambda s: int(s == 7)}, "skipped", "bad"),
        ({"update__clip_fraction_high": lambda s: 0.2}, "clip_high", "watch"),
        (
            {"rollout__response_length_mean": lambda s: 20.0 * s, "rollout__accuracy": lambda s: 0.8 - 0.01 * s},
            "length_without_use",
            "bad",
        ),
        (
            {"rollout__response_length_mean": lambda s: 200.0 / s, "rollout__accuracy": lambda s: 0.8 - 0.01 * s},
            "length_collapse",
            "bad",
        ),
        ({"rollout__accuracy": lambda s: 0.4}, "no_progress", "watch"),
    ],
)
def test_trouble_is_found_with_its_evidence(curves, kind, severity):
    found = {finding.kind: finding for finding in find(run_of(**curves), RECIPE)}
    assert found[kind].severity == severity
    assert any(character.isdigit() for character in found[kind].evidence)
    assert found[kind].advice


def test_the_worst_comes_first():
    both = run_of(update__entropy=lambda s: 0.5 / s, update__clip_fraction_low=lambda s: 0.2)
    assert kinds(both) == ["entropy_low", "clip_low", "progress"]


def test_a_low_entropy_at_high_accuracy_is_the_end_of_a_task():
    done = run_of(update__entropy=lambda s: 0.5 / s, rollout__accuracy=lambda s: min(0.5 + 0.05 * s, 0.95))
    assert find(done, RECIPE)[0].severity == "watch"


def test_evaluations_count_when_their_intervals_part():
    def scored(step, value):
        key = "eval/heldout/avg@4"
        return row(
            step, **{key: value, f"{key}_over_samples_low": value - 0.05, f"{key}_over_samples_high": value + 0.05}
        )

    assert "eval_up" in kinds([scored(1, 0.3), scored(9, 0.5)])
    assert "eval_down" in kinds([scored(1, 0.5), scored(9, 0.3)])
    assert not {"eval_up", "eval_down"} & set(kinds([scored(1, 0.5), scored(9, 0.55)]))


def test_one_noisy_step_is_no_trend():
    rows = run_of(update__entropy=lambda s: 0.0 if s == 40 else 0.5)
    assert "entropy_low" not in kinds(rows)


def test_trends_and_first_steps():
    rows = [{"step": n, "x": float(n)} for n in range(1, 17)]
    assert trend(rows, "x") is not None
    assert (trend(rows, "x").first, trend(rows, "x").last) == (2.5, 14.5)
    assert trend(rows[:7], "x") is None
    assert first_step_where(rows, "x", lambda value: value > 5) == 6
    assert first_step_where(rows, "x", lambda value: value > 15) == 0


ANY = st.none() | st.floats(-1e6, 1e6) | st.integers(0, 10**6)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), ANY), max_size=30))
def test_missing_and_odd_values_are_never_an_error(lines):
    assert find([{"step": step, **line} for step, line in enumerate(lines)], RECIPE)
