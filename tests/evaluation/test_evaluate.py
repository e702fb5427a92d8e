import json
import random
from dataclasses import replace

import numpy as np
import pytest

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.evaluate import evaluate as evaluate_by
from dapo_cli.evaluation.evaluate import from_engine, load_result, one_by_one, sample_seed
from dapo_cli.evaluation.result import EvaluationSettings
from dapo_cli.recipe.schema import Reward
from dapo_cli.types import Problem, Rollout, RolloutGroup, Sampling

SAMPLING = Sampling(8, 1.0, 0.7, 0, 0.0, 1.0, 0.0, 0.0, (2,), ())
SETTINGS = EvaluationSettings("heldout", 3, SAMPLING, 12, "toy@step_5", "toy_sums", "abc")
REWARD = Reward(overlong_buffer_length=4)
PROBLEMS = [
    (Problem(f"p{i}", f"What is {i} + 1?", (), str(i + 1), "toy_sums"), np.array([5, i], np.int32)) for i in range(5)
]
KINDS = ("right", "wrong", "no_answer", "truncated")


def evaluate(engine, *rest):
    return evaluate_by(from_engine(engine), *rest)


def response(problem, seed):
    kind = random.Random(seed).choice(KINDS)
    text = {"right": f"Answer: {problem.ground_truth}", "wrong": "Answer: -1"}.get(kind, "hm")
    ids = np.full(8 if kind == "truncated" else 3, 7, np.int32)
    return Rollout(ids, np.zeros(len(ids), np.float32), text, "length" if kind == "truncated" else "stop", 0)


def generate(requests):
    for request in requests:
        rollouts = tuple(response(request.problem, seed) for seed in request.seeds)
        yield RolloutGroup(request.index, request.problem, request.prompt_ids, rollouts)


def killed_after(groups):
    def dying(requests):
        for count, group in enumerate(generate(requests)):
            if count == groups:
                raise KeyboardInterrupt
            yield group

    return dying


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("samples.jsonl", "settings.json", "report.json")}


def test_seeds_are_64_bits_of_seed_problem_and_sample():
    seeds = {sample_seed(seed, problem, sample) for seed in (0, 1) for problem in ("a", "b") for sample in range(8)}
    assert len(seeds) == 32
    assert 2**60 < max(seeds) < 2**64
    # printf 'evaluation\x1f%s\x1f%s\x1f%s' 0 a 0 | b2sum -l 64, its bytes read from the last
    assert sample_seed(0, "a", 0) == int.from_bytes(bytes.fromhex("51c5629367effe1d"), "little")


def test_results_do_not_depend_on_the_order_of_problems_nor_on_what_else_is_asked():
    whole, shuffled = (
        evaluate(generate, PROBLEMS, SETTINGS, REWARD),
        evaluate(generate, PROBLEMS[::-1], SETTINGS, REWARD),
    )
    assert shuffled.problems == whole.problems[::-1]
    assert evaluate(generate, PROBLEMS[2:3], SETTINGS, REWARD).problems == whole.problems[2:3]


def test_counts_rates_and_metrics_are_those_of_the_responses():
    kinds = [
        [random.Random(sample_seed(SETTINGS.seed, problem.problem_id, sample)).choice(KINDS) for sample in range(3)]
        for problem, _ in PROBLEMS
    ]
    flat = [kind for row in kinds for kind in row]
    assert set(flat) == set(KINDS)
    result = evaluate(generate, PROBLEMS, SETTINGS, REWARD)
    metrics = result.to_metrics()
    assert result.num_correct.tolist() == [row.count("right") for row in kinds]
    assert metrics["eval/heldout/avg@3"] == pytest.approx(flat.count("right") / 15)
    assert metrics["eval/heldout/pass@3"] == pytest.approx(sum("right" in row for row in kinds) / 5)
    assert metrics["eval/heldout/truncated"] == pytest.approx(flat.count("truncated") / 15)
    assert metrics["eval/heldout/no_answer"] == pytest.approx((flat.count("no_answer") + flat.count("truncated")) / 15)
    assert metrics["eval/heldout/verifier_error"] == 0
    assert metrics["eval/heldout/response_length_mean"] == pytest.approx((15 * 3 + 5 * flat.count("truncated")) / 15)
    low, high = result.interval_over_problems
    assert metrics["eval/heldout/avg@3_over_problems_low"] == low
    assert metrics["eval/heldout/avg@3_over_problems_high"] == high
    low, high = result.interval_over_samples
    assert metrics["eval/heldout/avg@3_over_samples_low"] == low
    assert metrics["eval/heldout/avg@3_over_samples_high"] == high


def test_a_right_answer_at_the_limit_is_right_whatever_its_overlong_penalty():
    def long_and_right(requests):
        for request in requests:
            text = f"Answer: {request.problem.ground_truth}"
            rollout = Rollout(np.full(8, 7, np.int32), np.zeros(8, np.float32), text, "stop", 0)
            yield RolloutGroup(request.index, request.problem, request.prompt_ids, (rollout,) * 3)

    assert evaluate(long_and_right, PROBLEMS, SETTINGS, REWARD).avg_at_n == 1.0


def test_each_response_is_one_line(tmp_path):
    evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [(line["problem_id"], line["sample"]) for line in lines] == [
        (f"p{i}", s) for i in range(5) for s in range(3)
    ]
    assert lines[4]["seed"] == sample_seed(SETTINGS.seed, "p1", 1)
    assert lines[4]["response"] == response(PROBLEMS[1][0], lines[4]["seed"]).response


@pytest.mark.parametrize("groups", [0, 2, 4])
@pytest.mark.parametrize("torn", [0, 1, 30])
def test_a_killed_evaluation_goes_on_and_ends_in_the_same_files(tmp_path, groups, torn):
    expected = evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        evaluate(killed_after(groups), PROBLEMS, SETTINGS, REWARD, tmp_path / "killed")
    samples = tmp_path / "killed" / "samples.jsonl"
    if groups:  # the last write was cut short
        samples.write_bytes(samples.read_bytes()[: -torn or None])
    seen = []

    def counting(requests):
        seen.extend(requests)
        return generate(requests)

    progress = []
    result = evaluate(counting, PROBLEMS, SETTINGS, REWARD, tmp_path / "killed", lambda *done: progress.append(done))
    kept = 3 * groups - (1 if torn and groups else 0)
    assert [request.index for request in seen] == list(range(kept // 3, 5))
    assert sum(len(request.seeds) for request in seen) == 15 - kept
    assert progress == [(done, 15) for done in range(kept, 16)]
    assert result == expected
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_a_finished_evaluation_is_not_sampled_again(tmp_path):
    result = evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)
    assert evaluate(killed_after(0), PROBLEMS, SETTINGS, REWARD, tmp_path) == result
    assert load_result(tmp_path) == result


def test_only_a_finished_evaluation_has_a_result(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        evaluate(killed_after(2), PROBLEMS, SETTINGS, REWARD, tmp_path)
    with pytest.raises(UsageError, match=r"report\.json is missing"):
        load_result(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "toy@step_6"}, "model: 'toy@step_5' there, 'toy@step_6' now"),
        ({"samples": 4}, "samples: 3 there, 4 now"),
        ({"sampling": replace(SAMPLING, top_p=0.9)}, r"sampling\.top_p: 0.7 there, 0.9 now"),
    ],
)
def test_a_folder_of_other_settings_is_refused_and_left_alone(tmp_path, change, message):
    evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)
    before = files(tmp_path)
    with pytest.raises(UsageError, match=message):
        evaluate(generate, PROBLEMS, replace(SETTINGS, **change), REWARD, tmp_path)
    assert files(tmp_path) == before


def test_other_prompts_and_other_scoring_are_refused(tmp_path):
    evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)
    other_prompt = [*PROBLEMS[:4], (PROBLEMS[4][0], np.array([9], np.int32))]
    with pytest.raises(UsageError, match="prompts_hash"):
        evaluate(generate, other_prompt, SETTINGS, REWARD, tmp_path)
    with pytest.raises(UsageError, match=r"reward\.response_prefix: '' there, 'Answer:' now"):
        evaluate(generate, PROBLEMS, SETTINGS, Reward(response_prefix="Answer:"), tmp_path)


def test_damage_before_the_last_line_is_an_error(tmp_path):
    evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)
    samples = tmp_path / "samples.jsonl"
    lines = samples.read_bytes().split(b"\n")
    samples.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(DapoError, match=r"samples\.jsonl:2: not a sample"):
        evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)
    samples.write_bytes(b"\n".join([lines[0], lines[0], *lines[2:]]))
    with pytest.raises(DapoError, match="sample 0 of p0 is not one of this evaluation, or is there twice"):
        evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)


def test_samples_without_settings_are_refused(tmp_path):
    (tmp_path / "samples.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"no settings\.json"):
        evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path)


def test_no_problems_and_repeated_problems_are_refused():
    with pytest.raises(UsageError, match="no problems"):
        evaluate(generate, [], SETTINGS, REWARD)
    with pytest.raises(UsageError, match="problem p0 is there twice"):
        evaluate(generate, [PROBLEMS[0], PROBLEMS[0]], SETTINGS, REWARD)


def test_an_engine_that_returns_too_little_or_something_else_is_an_error():
    with pytest.raises(DapoError, match="9 of 15 responses came"):
        evaluate(lambda requests: generate(requests[:3]), PROBLEMS, SETTINGS, REWARD)
    with pytest.raises(DapoError, match="expected 3 responses to p0, got 3 responses to p4"):
        evaluate(lambda requests: generate(requests[::-1]), PROBLEMS, SETTINGS, REWARD)


def test_odd_text_survives_the_file(tmp_path):
    odd = "答案\u2028\ud800 Answer: 1"

    def strange(requests):
        for group in generate(requests):
            yield replace(group, rollouts=tuple(replace(rollout, response=odd) for rollout in group.rollouts))

    result = evaluate(strange, PROBLEMS, SETTINGS, REWARD, tmp_path)
    assert result.num_correct.tolist() == [3, 0, 0, 0, 0]
    assert load_result(tmp_path) == result


def test_responses_may_arrive_in_any_order_and_one_is_kept_as_soon_as_it_is_there(tmp_path):
    expected = evaluate(generate, PROBLEMS, SETTINGS, REWARD, tmp_path / "whole")

    def shuffled(requests):
        requests = list(requests)
        random.Random(0).shuffle(requests)
        for count, group in enumerate(generate(requests)):
            if count == 7:
                lines = (tmp_path / "any" / "samples.jsonl").read_bytes().splitlines()
                assert len(lines) == 7
                raise KeyboardInterrupt
            yield group

    with pytest.raises(KeyboardInterrupt):
        evaluate_by(one_by_one(shuffled), PROBLEMS, SETTINGS, REWARD, tmp_path / "any")
    asked = []

    def counting(requests):
        asked.extend(requests)
        return generate(requests)

    assert evaluate_by(one_by_one(counting), PROBLEMS, SETTINGS, REWARD, tmp_path / "any") == expected
    assert len(asked) == 8
    assert files(tmp_path / "any") == files(tmp_path / "whole")


def test_what_was_not_asked_for_is_refused():
    def twice(questions):
        for response in from_engine(generate)(questions):
            yield response
            yield response

    with pytest.raises(DapoError, match="sample 0 of problem 0 was not asked for"):
        evaluate_by(twice, PROBLEMS, SETTINGS, REWARD)
