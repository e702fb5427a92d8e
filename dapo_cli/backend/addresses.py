"""Where processes of a cluster meet."""

from __future__ import annotations

import socket


def free_address() -> tuple[str, int]:
    """This node's address on the cluster and a port that nothing uses at the moment."""
    import ray

    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(ray.util.get_node_ip_address()), int(probe.getsockname()[1])
