"""What the curves of the bench say."""

from dataclasses import replace

import pytest

from dapo_cli.mechanisms.bench import ARMS, Run
from dapo_cli.mechanisms.definition import find_mechanism, load_definition
from dapo_cli.mechanisms.runs import Curve
from dapo_cli.mechanisms.schema import Metric
from dapo_cli.mechanisms.tables import as_json, as_markdown, as_page
from dapo_cli.mechanisms.verdicts import judge, measured

SAMPLING = load_definition(find_mechanism("dynamic_sampling"))


def curve(updates_per_step, tokens_per_step, rise):
    """The share rises by `rise` a step, up to 1."""
    points = [
        {"step": n, "updates": n * updates_per_step, "tokens": n * tokens_per_step, "share": min(1.0, rise * n)}
        for n in range(41)
    ]
    return Curve(points, None, 2.0)


def bench(treatment_rise, definitions=(SAMPLING,)):
    """Eight pairs of a baseline that rises by about 0.025 a step."""
    curves = {}
    for definition in definitions:
        for pair in range(1, 9):
            rises = {"baseline": 0.025, "treatment": treatment_rise, "control": 0.025}
            for arm in ARMS:
                wobble = 1 + 0.01 * ((pair * 7 + len(arm)) % 5)
                tokens = 300 if arm == "treatment" else 100
                curves[Run(definition.name, arm, pair, definition)] = curve(8, tokens, rises[arm] * wobble)
    return list(definitions), curves


def test_a_prediction_that_comes_true_is_confirmed():
    [verdict] = judge(*bench(0.05))
    assert verdict.outcome == "confirmed"
    first, tokens, *_ = verdict.comparisons
    assert (first.metric, first.axis) == ("until share is 0.8", "updates")
    assert first.result.treatment == pytest.approx(first.result.baseline / 2, rel=0.05)
    assert (first.result.agreeing, first.result.pairs) == (8, 8)
    assert (tokens.axis, tokens.as_predicted) == ("tokens", True)  # half the steps at three times the tokens
    assert verdict.control.p > 0.05


def test_what_does_not_come_true_is_said():
    assert judge(*bench(0.025))[0].outcome == "NOT CONFIRMED"
    assert judge(*bench(0.0125))[0].outcome == "CONTRADICTED"


def test_a_level_that_is_never_reached_counts_with_the_end_of_the_curve():
    [verdict] = judge(*bench(0.01))
    assert verdict.comparisons[0].never_reached == 8
    assert verdict.comparisons[0].result.treatment == 320
    assert "8 runs never" in as_markdown([verdict])


def test_p_values_are_adjusted_over_all_mechanisms():
    twin = replace(SAMPLING, name="twin")
    [alone] = judge(*bench(0.026))
    both = judge(*bench(0.026, (SAMPLING, twin)))
    assert both[0].holm_p == pytest.approx(min(1.0, 2 * alone.holm_p))


def test_at_equal_tokens_the_dearer_run_is_read_earlier():
    cheap, dear = curve(8, 100, 0.02), curve(8, 300, 0.03)
    metric = Metric(value="share", at_step=6)
    assert measured(dear, metric, "updates", (cheap, dear)) == (pytest.approx(0.18), True)
    assert measured(dear, metric, "tokens", (cheap, dear)) == (pytest.approx(0.06), True)  # 600 tokens: step 2
    assert measured(cheap, metric, "tokens", (cheap, dear)) == (pytest.approx(0.12), True)


def test_the_results_say_the_same_in_every_form():
    verdicts = judge(*bench(0.05))
    assert '"verdict": "confirmed"' in as_json(verdicts)
    assert "| confirmed |" in as_markdown(verdicts)
    page = as_page(verdicts)
    assert "<strong>confirmed</strong>" in page
    assert "http:" not in page
    assert "https:" not in page
    assert page.count("<svg") == 1
