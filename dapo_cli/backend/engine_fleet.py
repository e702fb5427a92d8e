"""The vLLM replicas of a cluster as one engine: groups go to the replica with least to do and come back in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dapo_cli.backend.ray_session import fetch, gather
from dapo_cli.errors import DapoError
from dapo_cli.types import RolloutGroup, RolloutRequest


class EngineFleet:
    """Drives the actors of `engine_replica.EngineReplica`."""

    def __init__(self, actors: Sequence[Any], timeout_seconds: float) -> None:
        self.actors = tuple(actors)
        self._timeout_seconds = timeout_seconds
        self._unfinished_rollouts = [0] * len(self.actors)
        self.asleep = False

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call `method` with equal arguments on every replica; the results in order of replica.

        Raises:
            DapoError: a replica died, failed or has not answered in time.
        """
        return self.begin(method, *arguments)()

    def begin(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """`call` in two parts: the function returned waits for the results."""
        refs = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        names = [f"vLLM replica {number}" for number in range(len(refs))]
        return lambda: gather(refs, names, method.replace("_", " "), self._timeout_seconds)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once; yield their groups in the order of submission.

        Raises:
            DapoError: a replica died, or none has finished a group within the time limit.
        """
        submitted = []
        for request in requests:
            replica = int(np.argmin(self._unfinished_rollouts))
            self._unfinished_rollouts[replica] += len(request.seeds)
            submitted.append((self.actors[replica].generate_group.remote(request), replica, len(request.seeds)))
        return self._in_order(submitted)

    def _in_order(self, submitted: list[tuple[Any, int, int]]) -> Iterator[RolloutGroup]:
        import ray

        left = dict(enumerate(submitted))
        try:
            for index, (ref, replica, rollouts) in enumerate(submitted):
                self._await_group(ref, [later for later, _, _ in left.values()])
                group: RolloutGroup = fetch(ref, f"vLLM replica {replica}", "sampling")
                del left[index]
                self._unfinished_rollouts[replica] -= rollouts
                yield group
        finally:  # a step that is given up leaves nothing running; Ray may be gone when the garbage collector comes by
            for ref, replica, rollouts in left.values():
                if self.actors:
                    ray.cancel(ref)
                self._unfinished_rollouts[replica] -= rollouts

    def _await_group(self, ref: Any, left: list[Any]) -> None:
        """Wait for `ref` as long as some group of `left` finishes within the time limit."""
        import ray

        finished = -1
        while not ray.wait([ref], timeout=self._timeout_seconds, fetch_local=False)[0]:
            now = len(ray.wait(left, num_returns=len(left), timeout=0, fetch_local=False)[0])
            if now <= finished:
                raise DapoError(
                    f"sampling: no group has finished in {self._timeout_seconds:g} seconds",
                    hint="backend.timeout_seconds: a longer wait; or a smaller rollout.max_concurrent_rollouts",
                )
            finished = now

    def sleep(self) -> None:
        """Give the GPUs to the policy: weights and cache are dropped. Nothing is sampling then."""
        if not self.asleep:
            self.call("sleep")
            self.asleep = True

    def wake(self, send_weights: Callable[[], object]) -> None:
        """Run `send_weights` with memory for weights taken back, then take that of the cache.

        In this order the cache does not stand in the way of what the transfer needs.
        """
        if self.asleep:
            self.call("wake", ["weights"])
        send_weights()
        if self.asleep:
            self.call("wake", ["kv_cache"])
            self.asleep = False

    def close(self) -> None:
        """End the replicas; one that is gone already is no failure here."""
        import ray

        for ref in [actor.close.remote() for actor in self.actors]:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(ref, timeout=_CLOSING_SECONDS)
        for actor in self.actors:
            ray.kill(actor)
        self.actors = ()


_CLOSING_SECONDS = 30.0
