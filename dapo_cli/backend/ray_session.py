"""Ray for one run: connected to or started, asked with deadlines, and stopped again if it was ours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dapo_cli.backend.hardware import CLUSTER_ADDRESS, check_cluster
from dapo_cli.errors import DapoError, UsageError
from dapo_cli.recipe.schema import Recipe


def open_session(recipe: Recipe, processes: int) -> bool:
    """Connect to the cluster at RAY_ADDRESS, or start Ray on this machine; returns whether it was started here.

    `processes` policy ranks and engines will run. A connection that exists already is used as it is.

    Raises:
        UsageError: there is no cluster at that address, or it is too small; names what is missing.
    """
    import ray

    started_here = False
    if not ray.is_initialized():
        address = os.environ.get(CLUSTER_ADDRESS)
        # Ray counts cores to place processes; ranks and engines of a CPU run take turns on them.
        cores = {} if address else {"num_cpus": max(os.cpu_count() or 1, processes), "include_dashboard": False}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **cores)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UsageError(
                f"{CLUSTER_ADDRESS}={address}: cannot connect to Ray: {reason}", hint="docs/cluster.md"
            ) from error
        started_here = address is None
    try:
        check_cluster(recipe, ray.nodes())
    except UsageError:
        close_session(started_here)
        raise
    return started_here


def close_session(started_here: bool) -> None:
    """Leave the cluster; stops Ray only where this process started it."""
    import ray

    if started_here:
        ray.shutdown()


def gather(refs: Sequence[Any], names: Sequence[str], what: str, timeout_seconds: float) -> list[Any]:
    """The results of `refs`, which processes called `names` compute side by side.

    The first failure ends the wait: the others may hang in a collective without the one that failed.

    Raises:
        DapoError: a process died, raised, or has not answered in time; names it and what it was doing.
    """
    import ray

    by_ref = dict(zip(refs, names, strict=True))
    waiting = list(refs)
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=timeout_seconds)
        if not ready:
            late = ", ".join(by_ref[ref] for ref in waiting)
            raise DapoError(
                f"{what}: no answer from {late} in {timeout_seconds:g} seconds",
                hint="backend.timeout_seconds: a longer wait; the processes' own words are in Ray's logs: "
                f"{session_folder()}/logs",
            )
        fetch(ready[0], by_ref[ready[0]], what)
    return [fetch(ref, by_ref[ref], what) for ref in refs]


def fetch(ref: Any, name: str, what: str) -> Any:
    """The result of a finished call.

    Raises:
        DapoError: the process called `name` died or ran into an error of its own.
    """
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, DapoError):
            raise type(cause)(f"{name}: {cause.message}", cause.hint) from error
        raise
    except ray.exceptions.RayActorError as error:
        raise DapoError(
            f"{what}: {name} died: {(str(error).strip().splitlines() or ['no reason given'])[0]}",
            hint=f"--resume goes on from the newest checkpoint; its last words are in {session_folder()}/logs",
        ) from error


def session_folder() -> str:
    """Where Ray keeps the logs of this session, in words where it does not say."""
    from ray._private.worker import _global_node

    return str(_global_node.get_session_dir_path()) if _global_node is not None else "Ray's session folder"
