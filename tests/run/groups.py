"""Builders of scored rollout groups for the tests of run/."""

import numpy as np

from dapo_cli.types import Problem, Rollout, RolloutGroup, Verdict


def make_rollout(right, tokens=2, *, penalty=0.0, finish="stop", outcome=None, probability=0.5):
    return Rollout(
        response_ids=np.arange(tokens, dtype=np.int32),
        rollout_logprobs=np.log(np.full(tokens, probability, dtype=np.float32)),
        response=f"Answer: {7 if right else 8}",
        finish_reason=finish,
        policy_version=3,
        verdict=Verdict(1.0 if right else -1.0, outcome or ("right" if right else "wrong"), "7" if right else "8"),
        overlong_penalty=penalty,
    )


def make_group(index, rollouts):
    problem = Problem(f"id{index}", "3 + 4", ({"role": "user", "content": "3 + 4"},), "7", "toy_sums")
    return RolloutGroup(index, problem, np.arange(index + 1, dtype=np.int32), tuple(rollouts))
