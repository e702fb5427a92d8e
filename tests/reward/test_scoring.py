import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_formats import HOSTILE, ODD_FORMATS

from dapo_cli.recipe.schema import Reward
from dapo_cli.recipe.scorers import READS
from dapo_cli.reward.pool import close_pools
from dapo_cli.reward.scoring import answer_example, judge_all, score_group, score_in_order
from dapo_cli.types import Problem, Rollout, RolloutGroup


def make_group(*responses: tuple[str, int]) -> RolloutGroup:
    """Responses as (text, tokens), to a problem whose answer is 34."""
    problem = Problem("id", "17 + 17?", ({"role": "user", "content": "17 + 17?"},), "34", "test")
    rollouts = tuple(
        Rollout(np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), text, "stop", policy_version=3)
        for text, tokens in responses
    )
    return RolloutGroup(5, problem, np.zeros(2, np.int32), rollouts)


def test_verdict_and_penalty_are_independent():
    # Limit 20, buffer 8: free up to 12 tokens, 16 tokens cost (12 - 16) / 8 * 0.5 = -0.25, 20 tokens -0.5.
    reward = Reward(overlong_buffer_length=8, overlong_penalty_factor=0.5)
    group = make_group(("Answer: 34", 12), ("Answer: 34", 16), ("Answer: 35", 20), ("what?", 1))
    scored = score_group(group, reward, max_response_tokens=20)
    assert [rollout.scored.outcome for rollout in scored.rollouts] == ["right", "right", "wrong", "no_answer"]
    assert [rollout.overlong_penalty for rollout in scored.rollouts] == [0.0, -0.25, -0.5, 0.0]
    assert [rollout.reward for rollout in scored.rollouts] == [1.0, 0.75, -1.5, -1.0]
    assert scored.num_correct == 2


def test_input_group_is_unchanged_and_the_rest_is_kept():
    group = make_group(("Answer: 34", 3))
    scored = score_group(group, Reward(), max_response_tokens=20)
    assert group.rollouts[0].verdict is None
    assert (scored.index, scored.problem, scored.rollouts[0].policy_version) == (5, group.problem, 3)
    assert scored.rollouts[0].response_ids is group.rollouts[0].response_ids


def test_response_prefix_is_scored_with_the_response():
    group = make_group((" 34", 1))
    assert score_group(group, Reward(), 20).rollouts[0].scored.outcome == "no_answer"
    assert score_group(group, Reward(response_prefix="Answer:"), 20).rollouts[0].scored.outcome == "right"


def verdicts(reward, *responses, ground_truth="34"):
    problem = Problem("id", "17 + 17?", (), ground_truth, "test")
    return judge_all([(response, problem) for response in responses], reward)


@pytest.fixture
def scorer_module(tmp_path, monkeypatch):
    """A scorer that waits, fails and answers as the response says."""
    (tmp_path / "own_scorer.py").write_text(
        "import time\n"
        "def score(response, ground_truth, problem):\n"
        "    if 'hang' in response:\n"
        "        time.sleep(60)\n"
        "    if 'none' in response:\n"
        "        return {'score': -1.0, 'prediction': None}\n"
        "    return {'score': 1.0, 'prediction': f\"{response} {ground_truth} {problem['text']}\"}\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "own_scorer:score"
    close_pools()


@pytest.mark.parametrize("scorer", [name for name in READS if name != "math_verify"])
def test_every_named_scorer_accepts_its_own_example(scorer):
    reward = Reward(scorer=scorer)
    right, wrong, none = verdicts(reward, answer_example(scorer, "34"), answer_example(scorer, "35"), "what?")
    assert [right.outcome, wrong.outcome, none.outcome] == ["right", "wrong", "no_answer"]
    assert [right.score, wrong.score, none.score] == [1.0, -1.0, -1.0]


def test_of_a_list_the_first_that_finds_an_answer_decides():
    reward = Reward(scorer=("dapo", "boxed"))
    responses = ("Answer: 35 \\boxed{34}\nAnswer: 34", "\\boxed{34}\nAnswer: 35", "\\boxed{34}", "\\boxed{35}", "what?")
    outcomes = [verdict.outcome for verdict in verdicts(reward, *responses)]
    assert outcomes == ["right", "wrong", "right", "wrong", "no_answer"]


def test_a_scorer_that_fails_is_passed_over_and_never_makes_an_answer_wrong():
    failed, right = r"\frac{1}{3}", r"Answer: \frac{1}{2}"
    both = Reward(scorer=("integer", "dapo"))
    outcomes = [verdict.outcome for verdict in verdicts(both, right, failed, ground_truth=r"\frac{1}{2}")]
    assert outcomes == ["right", "verifier_error"]


def test_a_users_scorer_gets_response_ground_truth_and_problem(scorer_module):
    right, none = verdicts(Reward(scorer=scorer_module), "a text", "none")
    assert right.prediction == "a text 34 17 + 17?"
    assert none.outcome == "no_answer"


def test_what_becomes_of_a_response_without_a_verdict(scorer_module):
    (excluded,) = verdicts(Reward(scorer=scorer_module, time_limit_seconds=0.2), "hang")
    assert (excluded.outcome, excluded.score, excluded.failed) == ("verifier_error", 0.0, True)
    (wrong,) = verdicts(Reward(scorer=scorer_module, time_limit_seconds=0.2, on_verifier_error="wrong"), "hang")
    assert (wrong.outcome, wrong.score, wrong.failed) == ("wrong", -1.0, True)
    assert wrong.error == excluded.error == "the time limit of 0.2 s was reached"
    chain = Reward(scorer=(scorer_module, "dapo"), time_limit_seconds=0.2)
    assert [v.outcome for v in verdicts(chain, "hang\nAnswer: 34", "none\nAnswer: 35")] == ["right", "wrong"]


def test_groups_come_back_scored_in_order_and_one_for_one(scorer_module):
    reward = Reward(scorer=scorer_module, time_limit_seconds=0.3)
    groups = [make_group((f"{index} a", 1), ("hang" if index == 1 else f"{index} b", 1)) for index in range(5)]
    scored = list(score_in_order(iter(groups), reward, 20))
    predictions = [[r.scored.prediction for r in group.rollouts] for group in scored]
    assert predictions == [
        [f"{index} a 34 17 + 17?", None if index == 1 else f"{index} b 34 17 + 17?"] for index in range(5)
    ]
    assert [group.num_judged for group in scored] == [2, 1, 2, 2, 2]


def test_scoring_does_not_hold_up_generation(scorer_module):
    """All groups are generated while the verdicts of the first are still on their way."""
    reward = Reward(scorer=scorer_module, time_limit_seconds=1.0)
    generated = []

    def generate():
        for index in range(4):
            generated.append(index)
            yield make_group(("hang" if index == 0 else "x", 1))

    first = next(iter(score_in_order(generate(), reward, 20)))
    assert first.rollouts[0].scored.outcome == "verifier_error"
    assert generated == [0, 1, 2, 3]


def test_hostile_mathematics_within_its_clock():
    pytest.importorskip("math_verify")
    reward = Reward(scorer="math_verify", workers=2, time_limit_seconds=1.0)
    hostile = (r"\boxed{9^{9^{9^{9}}}}", r"\boxed{10^{10^{10}}!}", *HOSTILE)
    outcomes = [verdict.outcome for verdict in verdicts(reward, *hostile, "Answer: 68/2")]
    close_pools()
    assert outcomes[-1] == "right"
    assert "right" not in outcomes[:-1]


@pytest.mark.parametrize(
    "case",
    [case for case in ODD_FORMATS if case["id"] not in ("huge_pow", "huge_pow_box", "tower")],
    ids=lambda case: case["id"],
)
def test_math_verify_gives_the_librarys_own_verdicts(case):
    pytest.importorskip("math_verify")
    # Better than the library alone: an answer line in Chinese, another kind of box.
    expected = True if case["id"] in ("cn_answer", "fbox") else case["math_verify"]
    (verdict,) = verdicts(Reward(scorer="math_verify"), case["response"], ground_truth=case["ground_truth"])
    assert (verdict.outcome == "right") is expected


SCORER_LISTS = st.lists(st.sampled_from(["dapo", "dapo_2026_08", "boxed", "integer"]), min_size=1, unique=True)


@settings(deadline=None)
@given(st.lists(st.text(), max_size=6), st.text(), SCORER_LISTS, st.randoms())
def test_verdicts_do_not_depend_on_order(responses, ground_truth, scorers, random):
    reward = Reward(scorer=tuple(scorers))
    texts = [f"Answer: {response}" for response in responses]
    shuffled = random.sample(range(len(texts)), len(texts))
    in_order = verdicts(reward, *texts, ground_truth=ground_truth)
    assert verdicts(reward, *(texts[i] for i in shuffled), ground_truth=ground_truth) == [in_order[i] for i in shuffled]
