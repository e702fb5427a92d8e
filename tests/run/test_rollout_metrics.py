import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from groups import make_group, make_rollout

from dapo_cli.run.metrics import Metrics
from dapo_cli.run.rollout_metrics import pass_rate_histogram, rollout_metrics, version_lag
from dapo_cli.run.samples import save_rollouts

MIXED = make_group(
    0,
    [
        make_rollout(True, 1, probability=0.5),
        make_rollout(False, 4, probability=0.25, penalty=-0.5, finish="length", outcome="no_answer"),
    ],
)
ALL_RIGHT = make_group(1, [make_rollout(True, 2), make_rollout(True, 3, penalty=-0.25)])
ALL_WRONG = make_group(2, [make_rollout(False, 5), make_rollout(False, 5, outcome="verifier_error")])
SURPLUS = make_group(3, [make_rollout(True, 2), make_rollout(False, 2)])


def test_over_drawn_and_over_kept():
    metrics = rollout_metrics([MIXED, ALL_RIGHT, ALL_WRONG, SURPLUS], [MIXED])
    assert metrics["rollout/drawn_problems"] == 4
    assert metrics["rollout/kept_groups"] == 1
    assert metrics["rollout/all_right_groups"] == 1
    assert metrics["rollout/all_wrong_groups"] == 1
    assert metrics["rollout/unused_informative_groups"] == 1
    assert metrics["rollout/informative_fraction"] == 0.5
    assert metrics["rollout/accuracy"] == 0.5  # 4 of 8
    assert metrics["rollout/accuracy_kept"] == 0.5
    assert metrics["rollout/response_length_mean"] == 3.0  # (1+4 + 2+3 + 5+5 + 2+2) / 8
    assert metrics["rollout/response_length_mean_kept"] == 2.5
    assert (metrics["rollout/response_length_min"], metrics["rollout/response_length_max"]) == (1, 5)
    assert (metrics["rollout/response_tokens"], metrics["rollout/response_tokens_kept"]) == (24, 5)
    assert metrics["rollout/prompt_length_mean"] == 2.5  # 1, 2, 3, 4
    assert metrics["rollout/prompt_length_max"] == 4
    assert (metrics["rollout/truncated_fraction"], metrics["rollout/truncated_fraction_kept"]) == (0.125, 0.5)
    assert metrics["rollout/no_answer_fraction_kept"] == 0.5
    assert metrics["rollout/verifier_error_fraction"] == 0.125
    assert metrics["rollout/probability_mean_kept"] == pytest.approx(0.3)  # (0.5 + 4 x 0.25) / 5
    assert metrics["rollout/probability_mean"] == pytest.approx(11 / 24)  # (0.5 + 4 x 0.25 + 19 x 0.5) / 24
    # Over the seven with a verdict: 1, -1.5, 1, 0.75, -1, 1, -1.
    assert metrics["reward/verifier_errors"] == 1
    assert metrics["reward/mean"] == pytest.approx(0.25 / 7)
    assert metrics["reward/mean_kept"] == -0.25  # (1 - 1.5) / 2
    assert (metrics["reward/min"], metrics["reward/max"]) == (-1.5, 1.0)
    assert metrics["reward/score_mean"] == pytest.approx(1 / 7)
    assert metrics["reward/overlong_penalty_mean"] == -0.09375
    assert metrics["reward/overlong_penalized_fraction"] == 0.25


def test_what_is_different_within_a_group():
    answers = [make_rollout(right, tokens) for right, tokens in ((True, 1), (True, 9), (False, 2), (False, 2))]
    others = [replace(answers[0], response="So 7. Answer: 7"), replace(answers[1], response="Answer: 7")]
    metrics = rollout_metrics([make_group(0, answers), make_group(1, others)], [])
    assert metrics["rollout/distinct_answers_mean"] == 1.5  # 7 and 8, and 7
    assert metrics["rollout/distinct_right_responses_mean"] == 1.5  # one text twice, and two
    assert metrics["rollout/right_response_length_mean"] == 5.0  # 1, 9, 1, 9
    assert metrics["rollout/wrong_response_length_mean"] == 2.0
    assert "rollout/tokens_per_kept_group" not in metrics
    assert rollout_metrics([MIXED, ALL_RIGHT], [MIXED])["rollout/tokens_per_kept_group"] == 10


def test_groups_by_pass_rate_leave_out_what_has_no_verdict():
    sizes = [(0, 16), (1, 16), (4, 16), (5, 16), (12, 16), (13, 16), (15, 16), (16, 16), (0, 0), (7, 7)]
    counts = {key.rpartition("/")[2]: value for key, value in pass_rate_histogram(sizes).items()}
    assert counts == {"0": 1, "1-25": 2, "26-50": 1, "51-75": 1, "76-99": 2, "100": 2}


def test_the_lag_is_in_weight_versions():
    assert version_lag([MIXED], 3) == {"rollout/version_lag_mean": 0.0, "rollout/version_lag_max": 0}
    old = make_group(0, [replace(make_rollout(True), policy_version=1), make_rollout(False)])
    assert version_lag([old], 3) == {"rollout/version_lag_mean": 1.0, "rollout/version_lag_max": 2}
    assert version_lag([], 3) == {}


def test_an_all_right_group_with_penalties_is_not_informative():
    metrics = rollout_metrics([ALL_RIGHT], [])
    assert metrics["rollout/informative_fraction"] == 0
    assert metrics["rollout/unused_informative_groups"] == 0


def test_means_over_nothing_are_left_out():
    metrics = rollout_metrics([ALL_WRONG], [])
    assert metrics["rollout/kept_groups"] == 0
    assert not [key for key in metrics if key.endswith("_kept")]
    assert rollout_metrics([], [])["rollout/drawn_problems"] == 0


def test_without_any_verdict_there_is_no_reward_to_show():
    group = make_group(0, [make_rollout(False, 1, outcome="verifier_error") for _ in range(2)])
    metrics = rollout_metrics([group], [])
    assert metrics["reward/verifier_errors"] == 2
    assert "reward/mean" not in metrics
    assert (metrics["rollout/all_right_groups"], metrics["rollout/all_wrong_groups"]) == (0, 0)


def test_a_response_without_tokens_counts_in_lengths():
    metrics = rollout_metrics([make_group(0, [make_rollout(False, 0), make_rollout(False, 0)])], [])
    assert metrics["rollout/response_length_mean"] == 0
    assert "rollout/probability_mean" not in metrics


def documented_patterns():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    keys = [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]
    return [re.compile(re.sub(r"<\\?[a-z]+>", "[^/]+", re.escape(key))) for key in keys]


def test_every_key_of_a_line_is_documented_once(tmp_path):
    class Run:
        rollouts = tmp_path / "rollouts"

    metrics = Metrics(tmp_path / "metrics.jsonl")
    with metrics.step(1):
        metrics.add(rollout_metrics([MIXED, ALL_RIGHT, ALL_WRONG, SURPLUS], [MIXED, SURPLUS]))
        metrics.add(version_lag([MIXED], 3))
        metrics.add(save_rollouts(Run, 1, [MIXED], [MIXED], lambda ids: "prompt"))
        metrics.add({"updates": 1, "eval/heldout/avg@4": 0.5})
        with metrics.time("generate"):
            pass
    patterns = documented_patterns()
    assert len(patterns) > 50
    assert [key for key in metrics.last if not any(pattern.fullmatch(key) for pattern in patterns)] == []
    emitted_prefixes = ("rollout/", "reward/")
    trainer_keys = re.compile(r"rollout/(logprob_mismatch_.*|epochs)")
    stale = [
        pattern.pattern.replace("\\", "")
        for pattern in patterns
        if pattern.pattern.startswith(emitted_prefixes) and not any(pattern.fullmatch(key) for key in metrics.last)
    ]
    assert [key for key in stale if not trainer_keys.fullmatch(key)] == []


def test_each_dataset_of_several_has_metrics_of_its_own():
    def of(name, group):
        return replace(group, problem=replace(group.problem, dataset=name))

    drawn = [of("a", MIXED), of("a", ALL_RIGHT), of("b", ALL_WRONG)]
    metrics = rollout_metrics(drawn, drawn[:1])
    own = {key: value for key, value in metrics.items() if key.startswith("dataset/")}
    assert (own["dataset/a/drawn_problems"], own["dataset/b/drawn_problems"]) == (2, 1)
    assert (own["dataset/a/kept_groups"], own["dataset/b/kept_groups"]) == (1, 0)
    assert (own["dataset/a/accuracy"], own["dataset/b/accuracy"]) == (0.75, 0)  # 3 of 4, 0 of 2
    assert own["dataset/a/response_length_mean"] == 2.5  # (1 + 4 + 2 + 3) / 4
    assert own["dataset/b/verifier_error_fraction"] == 0.5
    one = rollout_metrics([of("a", MIXED), of("a", ALL_RIGHT)], [])
    assert not [key for key in one if key.startswith("dataset/")]
