import numpy as np

from dapo_cli.recipe.schema import Reward
from dapo_cli.reward.scoring import score_group
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
