"""From a sampled group to a judged one: the verdict of the recipe's scorers and the overlong penalty."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dapo_cli.algorithm.overlong import soft_overlong_punishment
from dapo_cli.recipe.schema import Reward
from dapo_cli.recipe.scorers import BOX, forms_read, scorer_names
from dapo_cli.reward import boxed, dapo_rule, dapo_rule_2026, integer, symbolic
from dapo_cli.reward.final_answer import ANSWER_CHARACTERS
from dapo_cli.reward.pool import PoolSettings, WorkerPool, shared_pool
from dapo_cli.types import Problem, RolloutGroup, Verdict

SCORERS: dict[str, Callable[[str, str], Verdict]] = {
    "dapo": dapo_rule.score,
    "dapo_2026_08": dapo_rule_2026.score,
    "boxed": boxed.score,
    "integer": integer.score,
}
"""Scorers that take microseconds and need no process of their own: (response, ground truth) -> verdict."""


class PendingVerdict:
    """The verdict of one response, which may still be in a worker; `result` is always the same one verdict.

    The scorers, those of the problem's dataset or else the recipe's, are asked in order until one finds an answer. One
    that fails is passed over; if none finds an answer and one failed, the outcome is `verifier_error`, else
    `no_answer`.
    """

    def __init__(self, response: str, problem: Problem, reward: Reward) -> None:
        self._response = response
        self._problem = problem
        self._reward = reward
        self._left = deque(problem.scorer or scorer_names(reward.scorer))
        self._failed: Verdict | None = None
        self._verdict: Verdict | None = None
        self._running: Future[dict[str, Any]] | None = None
        self._go_on()

    def done(self) -> bool:
        """Whether `result` returns at once."""
        if self._running is not None and self._running.done():
            self._take(_from_worker(self._running.result()))
        return self._verdict is not None

    def result(self) -> Verdict:
        """The verdict; waits for it.

        Raises:
            DapoError: the worker processes cannot be started, or the user's scorer cannot be imported.
        """
        while self._verdict is None:
            assert self._running is not None
            self._take(_from_worker(self._running.result()))
        return self._verdict

    def _go_on(self) -> None:
        """Ask the next scorers until one is in a worker or the verdict is there."""
        while self._verdict is None and self._running is None:
            name = self._left.popleft()
            if name in SCORERS:
                self._take(SCORERS[name](self._response, self._problem.ground_truth))
                return
            fast = symbolic.fast_verdict(self._response, self._problem.ground_truth) if name == "math_verify" else None
            if fast is not None:
                self._take(_from_worker(fast))
                return
            self._running = worker_pool(name, self._reward).submit(_request(name, self._response, self._problem))

    def _take(self, verdict: Verdict) -> None:
        self._running = None
        if verdict.outcome == "verifier_error" and self._failed is None:
            self._failed = verdict
        if verdict.outcome in ("right", "wrong") or not self._left:
            decided = verdict if verdict.outcome in ("right", "wrong") else self._failed or verdict
            self._verdict = by_recipe(decided, self._reward)
        else:
            self._go_on()


def by_recipe(verdict: Verdict, reward: Reward) -> Verdict:
    """A verdict that is none becomes wrong if `reward.on_verifier_error` says so; its reason stays.

    >>> by_recipe(Verdict(0.0, "verifier_error", None, "time"), Reward(on_verifier_error="wrong"))
    Verdict(score=-1.0, outcome='wrong', prediction=None, error='time')
    """
    if reward.on_verifier_error == "wrong" and verdict.outcome == "verifier_error":
        return replace(verdict, outcome="wrong", score=-1.0)
    return verdict


def _request(name: str, response: str, problem: Problem) -> dict[str, Any]:
    about = {
        "problem_id": problem.problem_id,
        "text": problem.text,
        "messages": list(problem.messages),
        "data_source": problem.data_source,
    }
    if name == "math_verify":
        response = response[-2 * ANSWER_CHARACTERS :]  # more than it looks at, less than a long response
    return {"scorer": name, "response": response, "ground_truth": problem.ground_truth, "problem": about}


def _from_worker(reply: dict[str, Any]) -> Verdict:
    outcome = reply["outcome"]
    if outcome == "verifier_error":
        return Verdict(0.0, "verifier_error", None, reply["error"])
    return Verdict(reply.get("score", 1.0 if outcome == "right" else -1.0), outcome, reply["prediction"])


def worker_pool(name: str, reward: Reward) -> WorkerPool:
    """The pool of this process for a scorer that needs one."""
    return shared_pool(PoolSettings(name, reward.workers, reward.time_limit_seconds, reward.memory_limit_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class PendingGroup:
    """A group whose verdicts are on their way."""

    group: RolloutGroup
    verdicts: tuple[PendingVerdict, ...]
    penalties: tuple[float, ...]

    def done(self) -> bool:
        """Whether `result` returns at once."""
        # Every one is asked: asking is what moves a chain of scorers on.
        waiting = sum(not verdict.done() for verdict in self.verdicts)
        return waiting == 0

    def result(self) -> RolloutGroup:
        """A copy of the group in which every rollout has its verdict and its overlong penalty; waits for them."""
        scored = zip(self.group.rollouts, self.verdicts, self.penalties, strict=True)
        rollouts = tuple(
            replace(rollout, verdict=verdict.result(), overlong_penalty=penalty) for rollout, verdict, penalty in scored
        )
        return replace(self.group, rollouts=rollouts)


def submit_group(group: RolloutGroup, reward: Reward, max_response_tokens: int) -> PendingGroup:
    """Start scoring every rollout of a group, without waiting for what needs a worker.

    The scorer sees `reward.response_prefix` and the response as one text. The penalty depends on the number of response
    tokens alone, whether the answer is right or not.
    """
    penalties = soft_overlong_punishment(
        np.array([len(rollout.response_ids) for rollout in group.rollouts], dtype=np.int64),
        max_response_tokens,
        reward.overlong_buffer_length,
        reward.overlong_penalty_factor,
    )
    verdicts = tuple(
        PendingVerdict(reward.response_prefix + rollout.response, group.problem, reward) for rollout in group.rollouts
    )
    return PendingGroup(group, verdicts, tuple(float(penalty) for penalty in penalties))


def score_group(group: RolloutGroup, reward: Reward, max_response_tokens: int) -> RolloutGroup:
    """The scored copy of one group; see `submit_group`."""
    return submit_group(group, reward, max_response_tokens).result()


def score_in_order(groups: Iterable[RolloutGroup], reward: Reward, max_response_tokens: int) -> Iterator[RolloutGroup]:
    """Every group scored, in the order given, one for one; the next are generated while verdicts are on their way."""
    waiting: deque[PendingGroup] = deque()
    for group in groups:
        waiting.append(submit_group(group, reward, max_response_tokens))
        while waiting and waiting[0].done():
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def judge_all(cases: Sequence[tuple[str, Problem]], reward: Reward) -> list[Verdict]:
    """The verdict of each (whole response, problem), in order."""
    return [verdict.result() for verdict in [PendingVerdict(text, problem, reward) for text, problem in cases]]


def answer_example(scorer: str | tuple[str, ...], answer: str) -> str | None:
    r"""A whole response, prefix included, that gives `answer` in the form a scorer reads; None for a user's own.

    >>> answer_example("dapo", "42"), answer_example("boxed", "42"), answer_example("mine:score", "42")
    ('Answer: 42', '\\boxed{42}', None)
    """
    forms = forms_read(scorer)
    if forms is None:
        return None
    return f"{BOX}{{{answer}}}" if forms[0] == BOX else dapo_rule.answer_example(answer)
