import re

import numpy as np
import pytest

from dapo_cli.evaluation import statistics as stats

COUNTS = np.array([0, 8, 16, 24, 32] * 6)  # 50.0 on 30 problems; over problems +/- 13


def test_a_score_alone_has_both_intervals():
    # these: v = 6 (8 * 24 + 16 * 16 + 24 * 8) / (1024 * 31) / 900 = 1.3441e-4, size 0.25 / v = 1860, half 2.27 points
    # like these: s^2 = 0.125 / 29, size 0.25 * 29 / 0.125 = 58, t = 2.0452, half 12.97 points
    line = stats.verdict_line(COUNTS, 32)
    assert line == "50.0 (95% 47.7-52.3 on these 30 problems, 37.0-63.0 on problems like these)"


def test_a_score_near_the_published_one_is_consistent():
    counts = np.array([0, 8, 17, 25, 32] * 6)
    line = stats.verdict_line(counts, 32, stats.Published(0.52, 32))
    assert line == (
        "51.2 (95% 49.0-53.5 on these 30 problems); public 52: difference -0.8 +/- 3.2, consistent"
    )  # 82 / 160 = 51.25


def test_50_against_42_separates_on_these_problems_or_paired_only():
    line = stats.verdict_line(COUNTS, 32, stats.Published(0.42, 32))
    assert re.fullmatch(
        r"50\.0 \(95% 47\.7-52\.3 on these 30 problems\); public 42: difference \+8\.0 \+/- 3\.2, "
        r"higher on these 30 problems only: \+8\.0 \+/- 18\.2 on problems like these, "
        r"unless both are paired by problem",
        line,
    )


@pytest.mark.parametrize(("published", "word"), [(0.1, "higher"), (0.9, "lower")])
def test_a_large_difference_separates_on_problems_like_these_too(published, word):
    assert f", {word}, on problems like these too (" in stats.verdict_line(COUNTS, 32, stats.Published(published, 32))


def test_a_lopsided_interval_is_shown_by_its_bounds():
    line = stats.verdict_line(np.zeros(30, int), 2, stats.Published(0.02, 32, "naive GRPO"))
    # the chance of 0 of 60 may be up to 6.0 above 0, and not below it
    assert re.search(r"naive GRPO 2: difference -2\.0 \(95% -\d\.\d to \+4\.\d\), consistent$", line)


def test_unknown_samples_of_a_published_score_are_named_as_an_assumption():
    line = stats.verdict_line(COUNTS, 32, stats.Published(0.475))
    assert "public 47.5 (its 32 samples per problem assumed): difference +2.5" in line


@pytest.mark.parametrize("n", [1, 2, 3, 32])
@pytest.mark.parametrize("share", [0, 1])
def test_every_n_and_extreme_has_a_line(n, share):
    line = stats.verdict_line(np.full(30, share * n), n, stats.Published(0.5, 32))
    assert line.startswith(f"{100 * share:.1f} (95% ")
    assert ("higher" if share else "lower") in line
    assert "nan" not in line


def test_one_problem_is_one_problem():
    assert "on this 1 problem, 0.0-100.0 on problems like these)" in stats.verdict_line(np.array([2]), 4)


def test_two_results_are_compared_by_problem():
    after = np.minimum(COUNTS + 3, 32)
    line = stats.comparison_line(stats.paired_difference(COUNTS, after, 32, 32), "step_20", "step_40")
    # 4 of 5 problems gain 3 of 32: 7.5 points; 24 of 30 better, 2 / 2^24 = 1.2e-07
    assert re.fullmatch(
        r"step_40 57\.5, step_20 50\.0: difference \+7\.5 \+/- 3\.\d on these 30 problems, higher; "
        r"paired, on problems like these \+7\.5 \+/- 3\.\d, higher; "
        r"better on 24, worse on 0, equal on 6 \(sign test p 1\.2e-07\)",
        line,
    )
