"""From a sampled group to a judged one: the verdict of a scorer and the overlong penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dapo_cli.algorithm.overlong import soft_overlong_punishment
from dapo_cli.recipe.schema import Reward
from dapo_cli.reward import dapo_rule
from dapo_cli.types import RolloutGroup, Verdict

SCORERS: dict[str, Callable[[str, str], Verdict]] = {"dapo": dapo_rule.score}
"""Name in the recipe -> (response, ground truth) -> verdict. Outcome `verifier_error` is for scorers that can fail."""

_ANSWER_EXAMPLES: dict[str, Callable[[str], str]] = {"dapo": dapo_rule.answer_example}


def score_group(group: RolloutGroup, reward: Reward, max_response_tokens: int) -> RolloutGroup:
    """A copy of `group` in which every rollout has its verdict and its overlong penalty.

    The scorer sees `reward.response_prefix` and the response as one text. The penalty depends on the number of response
    tokens alone, whether the answer is right or not.
    """
    scorer = SCORERS[reward.scorer]
    penalties = soft_overlong_punishment(
        np.array([len(rollout.response_ids) for rollout in group.rollouts], dtype=np.int64),
        max_response_tokens,
        reward.overlong_buffer_length,
        reward.overlong_penalty_factor,
    )
    rollouts = tuple(
        replace(
            rollout,
            verdict=scorer(reward.response_prefix + rollout.response, group.problem.ground_truth),
            overlong_penalty=float(penalty),
        )
        for rollout, penalty in zip(group.rollouts, penalties, strict=True)
    )
    return replace(group, rollouts=rollouts)


def answer_example(scorer: str, answer: str) -> str:
    """A whole response, prefix included, that gives `answer` in the format `scorer` reads.

    Raises:
        KeyError: no scorer of that name.

    >>> answer_example("dapo", "42")
    'Answer: 42'
    """
    return _ANSWER_EXAMPLES[scorer](answer)
