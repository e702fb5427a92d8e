"""Wait until named hosts have joined the cluster at RAY_ADDRESS: `python -m dapo_cli.backend.await_nodes HOST...`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence

from dapo_cli.backend.hardware import CLUSTER_ADDRESS


def missing_hosts(wanted: Sequence[str], joined: Sequence[str]) -> list[str]:
    """Hosts that have not joined; a short name and one with its domain are the same host.

    >>> missing_hosts(["a", "b.cluster"], ["a.cluster", "c"])
    ['b.cluster']
    """
    short = {name.partition(".")[0] for name in joined}
    return [host for host in wanted if host.partition(".")[0] not in short]


def await_hosts(wanted: Sequence[str], joined: Callable[[], Sequence[str]], seconds: float) -> list[str]:
    """Ask `joined` until all of `wanted` are there; the hosts missing after `seconds`."""
    deadline = time.monotonic() + seconds
    while missing := missing_hosts(wanted, joined()):
        if time.monotonic() > deadline:
            return missing
        time.sleep(min(2.0, seconds))
    return []


def _joined() -> list[str]:
    """Hosts of the cluster; none while there is no cluster yet."""
    import ray

    if not ray.is_initialized():
        try:
            ray.init(address=os.environ[CLUSTER_ADDRESS], log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError):
            return []
    return [node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]]


def main() -> None:
    """Exit 0 once all hosts are there, 1 with the missing ones named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("hosts", nargs="+")
    arguments = parser.parse_args()
    missing = await_hosts(arguments.hosts, _joined, arguments.seconds)
    if missing:
        sys.exit(
            f"after {arguments.seconds:g} seconds {len(missing)} of {len(arguments.hosts)} nodes have not joined the "
            f"Ray cluster at {os.environ.get(CLUSTER_ADDRESS)}: {', '.join(missing)}"
        )
    print(f"all {len(arguments.hosts)} nodes have joined")


if __name__ == "__main__":
    main()
