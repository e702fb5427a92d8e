"""One replica of a served model: vLLM's own OpenAI server, behind Ray Serve's proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dapo_cli.rollout.vllm_arguments import Device
from dapo_cli.rollout.vllm_environment import in_other_processes, set_defaults
from dapo_cli.serving.arguments import parse_arguments

MAX_ONGOING_REQUESTS = 256
"""Of one replica, as in the public evaluation's server; more wait in the proxy."""


class VLLMReplica:
    """An asynchronous vLLM engine and the routes of vLLM's OpenAI server, in one Ray Serve replica."""

    async def __init__(self, arguments: Sequence[str], device: Device) -> None:  # type: ignore[misc]  # Serve awaits it
        set_defaults()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
        from vllm.v1.engine.async_llm import AsyncLLM

        parsed = parse_arguments(arguments)
        with in_other_processes(device, parsed.enforce_eager, parsed.tensor_parallel_size):
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(parsed))
        tasks = await self._engine.get_supported_tasks()
        self._app = build_app(parsed, tasks, self._engine.model_config)
        await init_app_state(self._engine, self._app.state, parsed, tasks)

    def __serve_build_asgi_app__(self) -> Any:
        return self._app

    async def check_health(self) -> None:
        """Ray Serve replaces a replica whose engine died."""
        await self._engine.check_health()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.shutdown()


def deployment(arguments: Sequence[str], device: Device, replicas: int, gpus_per_replica: int) -> Any:
    """The Ray Serve application of `replicas` replicas, each on one machine; needs ray[serve]."""
    from ray import serve

    replica = serve.deployment(
        serve.ingress()(VLLMReplica),
        name="vllm",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus_per_replica},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        # What keeps an engine from starting, such as memory, is not cured by trying again.
        max_constructor_retry_count=1,
        health_check_timeout_s=60,
    )
    return replica.bind(list(arguments), device)
