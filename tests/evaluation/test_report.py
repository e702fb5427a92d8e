import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from dapo_cli.evaluation.report import comparison_table, evaluation_table, paired_line, report_values, verdict_lines
from dapo_cli.evaluation.result import EvaluationResult, EvaluationSettings, ProblemResult
from dapo_cli.recipe.schema import Reward
from dapo_cli.types import Sampling

SAMPLING = Sampling(8, 1.0, 0.7, 0, 0.0, 1.0, 0.0, 0.0, (2,), ())
SETTINGS = EvaluationSettings("heldout", 4, SAMPLING, 1, "runs/demo@step_40", "toy_sums", "abc")


def result(counts, **changes):
    settings = replace(SETTINGS, **changes)
    n = settings.samples
    problems = tuple(
        ProblemResult(
            problem_id=f"p{i}",
            ground_truth="7",
            num_correct=c,
            truncated=1,
            no_answer=4 - c,
            verifier_errors=0,
            response_tokens=(3, 4, 5, 8, 3, 4, 5, 8)[:n],
            predictions=("7",) * c + (None,) * (n - c),
            right=(True,) * c + (False,) * (n - c),
        )
        for i, c in enumerate(counts)
    )
    return EvaluationResult(settings, problems)


def render(table):
    console = Console(file=StringIO(), width=80)
    console.print(table)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    return text


def row(text, name):
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.strip().split("│")[1:-1]]


def test_the_table_shows_score_intervals_and_rates():
    text = render(evaluation_table(result([2, 4, 0])))
    assert "heldout: runs/demo@step_40" in text
    assert "CONTAMINATED" not in text
    assert row(text, "avg@4") == ["avg@4", "50.0%"]  # 6 of 12
    assert row(text, "pass@4") == ["pass@4", "66.7%"]
    assert row(text, "problems x samples")[1] == "3 x 4"
    assert row(text, "truncated")[1] == "25.0%"
    assert row(text, "no answer")[1] == "50.0%"
    assert row(text, "mean response tokens")[1] == "5.0"
    # v = 4 / (16 * 3) / 9 = 0.009259, size 0.25 / v = 27, z^2 = 3.8415:
    # half = 1.96 / 1.1423 * sqrt(0.25 / 27 + 3.8415 / 2916) = 0.1765
    assert row(text, "on these problems")[1] == "32.4 to 67.6%"
    # m = 0.5, s^2 = 0.25 / 3, size max(3, 3): t = 4.3027, t^2 = 18.5128:
    # half = 4.3027 / 7.1709 * sqrt(0.25 / 3 + 18.5128 / 36) = 0.6 * 0.7730 = 0.4638
    assert row(text, "on problems like these")[1] == "3.6 to 96.4%"


def test_the_comparison_shows_the_change_in_points():
    text = render(comparison_table(result([1, 1, 0]), result([4, 4, 3])))
    assert row(text, "avg@4") == ["avg@4", "16.7%", "91.7%", "+75.0 points"]
    assert "not the same" not in text


def test_the_comparison_says_what_cannot_be_compared():
    other = result([4, 4], samples=8, sampling=replace(SAMPLING, top_p=1.0))
    text = render(comparison_table(result([1, 1, 0]), other))
    assert "not the same problems; not the same sampling" in text
    assert row(text, "avg@4") == ["avg@4", "16.7%", "", ""]
    assert row(text, "avg@8") == ["avg@8", "", "50.0%", ""]


@pytest.mark.parametrize("build", [evaluation_table, lambda r: comparison_table(r, r)])
def test_contamination_is_in_the_title_and_below(build):
    text = render(build(result([2, 4, 0], contaminated=True)))
    assert "heldout CONTAMINATED:" in text
    assert "CONTAMINATED: evaluated problems are in the training data" in " ".join(text.split())


def test_report_values_are_json_and_complete():
    values = report_values(result([2, 4, 0]), Reward())
    assert json.loads(json.dumps(values, allow_nan=False))["settings"]["model"] == "runs/demo@step_40"
    assert values["avg@4"] == 0.5
    assert list(values["pass_at_k"]) == ["1", "2", "4"]
    assert values["pass_at_k"]["2"] == pytest.approx((5 / 6 + 1 + 0) / 3)  # 1 - C(2,2) / C(4,2) = 5/6
    assert values["settings"]["dataset_hash"] == "abc"
    assert values["problems"][1]["num_correct"] == 4
    assert values["maj_at_k"]["4"] == pytest.approx(0.5)  # 7, 7 and two without an answer: a tie, half; 1; 0
    assert values["verdict"] == [verdict_lines(result([2, 4, 0]))[0]]
    assert sum(each["responses"] for each in values["accuracy_by_length"]) == 12
    assert "warning" not in values


def test_report_of_contaminated_and_of_one_problem():
    values = report_values(result([2], contaminated=True, samples=4), Reward())
    assert values["warning"].startswith("CONTAMINATED")
    assert values["stderr_over_problems"] is None
    assert values["interval_over_problems"] == [0.0, 1.0]


@pytest.mark.parametrize(("samples", "powers"), [(1, ["1"]), (2, ["1", "2"]), (3, ["1", "2", "3"])])
def test_every_number_of_samples_has_a_report(samples, powers):
    assert list(report_values(result([1, 0], samples=samples), Reward())["pass_at_k"]) == powers


def test_published_scores_stand_beside_a_whole_benchmark_only():
    whole = result([2] * 30, benchmark="aime_2024", samples=4)
    lines = verdict_lines(whole)
    assert lines[0].startswith("50.0 (95% ")
    assert "DAPO-Qwen-32B in the paper 50: difference +0.0" in lines[0]
    assert lines[-1] == "responses were cut at 8 tokens and the published ones at 20480: not comparable"
    assert len(verdict_lines(result([2] * 29, benchmark="aime_2024"))) == 1


def test_two_evaluations_are_paired_by_problem_whatever_their_order():
    before, after = result([0, 1, 4]), result([1, 3, 4])
    turned = replace(after, problems=after.problems[::-1])
    assert paired_line(before, turned) == paired_line(before, after)
    assert "better on 2, worse on 0, equal on 1" in paired_line(before, after)
    assert paired_line(before, result([1, 2])) is None
