"""`dapo serve`: a model behind an API like OpenAI's, by Ray Serve and vLLM, on every GPU of the cluster."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dapo_cli.backend.hardware import CLUSTER_ADDRESS
from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.engines import choose_tensor_parallel, weights_bytes
from dapo_cli.policy.model import resolve_model
from dapo_cli.policy.sharded_load import local_model_folder
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names
from dapo_cli.recipe.schema import Model
from dapo_cli.rollout.vllm_arguments import Device
from dapo_cli.rollout.vllm_environment import check_vllm, installed_vllm, set_defaults
from dapo_cli.run.files import Note
from dapo_cli.serving.arguments import Served, parse_arguments, vllm_arguments
from dapo_cli.workload import MODEL_CACHE

_APPLICATION = "dapo"
_SECONDS_BETWEEN_LOOKS = 5.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `dapo serve`; None is found out."""

    model_or_recipe: str
    overrides: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    tensor_parallel: int | None = None
    replicas: int | None = None
    max_model_tokens: int | None = None
    dtype: str | None = None
    served_model: str | None = None
    chat_template: Path | None = None
    vllm: tuple[str, ...] = ()


def serve_model(options: ServeOptions, note: Note) -> None:
    """Serve until interrupted. `note` is told what is served, where, and when its state changes.

    Raises:
        UsageError: the model cannot be had or does not fit, the port is taken, or an argument that vLLM does not take.
        DapoError: the engine does not start.
    """
    if find_spec("ray") is None or find_spec("grpc_reflection") is None:
        raise UsageError("dapo serve: Ray Serve is not installed", hint="pip install -e '.[vllm,serve]'")
    refuse_taken_port(options.host, options.port)
    installed = installed_vllm()
    device: Device = installed[0] if installed is not None else "cuda"
    check_vllm(device)
    set_defaults()
    with _ray() as gpus, _interruptible(note):
        served, config = find_served(options, [] if device == "cpu" else _gpu_bytes())
        replicas = count_replicas(options.replicas, served.tensor_parallel, gpus, device)
        arguments = vllm_arguments(served, device, config)
        parse_arguments(arguments)
        note(f"serving {served.name} ({served.folder}): {replicas} replicas x {served.tensor_parallel} {device}")
        note("vLLM: " + " ".join(arguments))
        with _application(options, arguments, device, (replicas, served.tensor_parallel)):
            note(f"ready: http://{options.host}:{options.port}/v1 serves {served.name}; Ctrl-C ends it")
            note(f"next: dapo eval --endpoint http://{options.host}:{options.port}/v1 --served-model {served.name}")
            _watch(note)


def find_served(options: ServeOptions, gpu_bytes: list[int]) -> tuple[Served, Any]:
    """The model that the options mean and its config, with its weights here and spread over enough GPUs.

    A recipe's model is its `eval.model`, else its `model.path`. A local folder is served under its own name and a hub
    model under its id, as in the public evaluation.

    Raises:
        UsageError: no such model or recipe, or the GPUs do not hold it.
    """
    from transformers import AutoConfig

    model, dtype = _model_of(options)
    resolved = resolve_model(model, MODEL_CACHE)
    folder = local_model_folder(resolved, model.revision)
    config = AutoConfig.from_pretrained(folder)
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{model.path}: not a decoder (model_type {config.model_type})")
    heads = config.get_text_config().num_attention_heads
    parallel = options.tensor_parallel or choose_tensor_parallel(weights_bytes(folder), gpu_bytes, heads)
    if heads % parallel:
        what = f"{model.path} has {heads} attention heads, which {parallel} does not divide"
        raise UsageError(f"--tensor-parallel {parallel}: {what}")
    name = options.served_model or (Path(model.path).resolve().name if Path(model.path).is_dir() else model.path)
    return (
        Served(folder, name, dtype, parallel, options.max_model_tokens, options.chat_template, options.vllm),
        config,
    )


def _model_of(options: ServeOptions) -> tuple[Model, str]:
    """The model, and the precision it is computed in; that of a recipe is the recipe's."""
    reference = options.model_or_recipe
    if not reference.endswith((".yaml", ".yml")) and (reference not in packaged_names() or Path(reference).is_dir()):
        if options.overrides:
            raise UsageError("--set belongs to a recipe", hint=f"{reference} is a model; --vllm KEY=VALUE sets vLLM's")
        return Model(path=reference), options.dtype or "auto"
    recipe = load_recipe(reference, options.overrides).recipe
    own = recipe.model
    if recipe.eval.model is not None:
        own = own.model_copy(update={"path": recipe.eval.model, "revision": None})
    return own, options.dtype or own.dtype


def count_replicas(wanted: int | None, tensor_parallel: int, gpus: int, device: Device) -> int:
    """As many replicas as the GPUs of the cluster hold; one on a CPU.

    >>> count_replicas(None, 2, 8, "cuda"), count_replicas(3, 2, 8, "cuda"), count_replicas(None, 1, 0, "cpu")
    (4, 3, 1)

    Raises:
        UsageError: more than the GPUs hold.
    """
    if device == "cpu":
        return wanted or 1
    most = gpus // tensor_parallel
    if most < (wanted or 1):
        what = f"{wanted or 1} replicas x {tensor_parallel} GPUs"
        raise UsageError(f"dapo serve: {what}, but the cluster has {gpus} GPUs", hint="lower --tensor-parallel")
    return wanted or most


def refuse_taken_port(host: str, port: int) -> None:
    """Ray Serve would say so only in its logs.

    Raises:
        UsageError: the address cannot be listened at.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: {error.strerror}", hint="choose another --port") from error


def _gpu_bytes() -> list[int]:
    """Memory of the GPUs of this machine; a replica is on one machine, and all are taken to be alike."""
    import torch

    return [torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())]


@contextmanager
def _interruptible(note: Note) -> Iterator[None]:
    """Ends at Ctrl-C and at SIGTERM alike, with what is inside ended first and no error; inside of Ray, which would
    otherwise end the process at a SIGTERM and leave its own behind.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        note("ended")
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _ray() -> Iterator[int]:
    """Inside, this process is connected to the cluster that the environment names, or to a Ray of its own; the GPUs."""
    import ray

    address = os.environ.get(CLUSTER_ADDRESS)
    # Proxy, controller and replicas take turns on the cores of a small machine.
    cores = {} if address else {"num_cpus": max(os.cpu_count() or 1, 4), "include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **cores)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{CLUSTER_ADDRESS}={address}: cannot connect to Ray: {reason}", "docs/cluster.md") from error
    try:
        yield int(ray.cluster_resources().get("GPU", 0))
    finally:
        ray.shutdown()


@contextmanager
def _application(
    options: ServeOptions, arguments: Sequence[str], device: Device, size: tuple[int, int]
) -> Iterator[None]:
    """Inside, all replicas answer. `size` is (replicas, workers of each)."""
    import logging

    from ray import serve
    from ray.serve.exceptions import RayServeException

    from dapo_cli.backend.ray_session import session_folder
    from dapo_cli.serving.replica import deployment

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    application = deployment(arguments, device, size[0], size[1] if device == "cuda" else 0)
    try:
        # Long responses are not cut off: the client decides how long it waits.
        serve.start("HeadOnly", {"host": options.host, "port": options.port, "request_timeout_s": None})
        try:
            serve.run(application, name=_APPLICATION)
        except (RuntimeError, RayServeException) as error:
            raise DapoError(f"dapo serve: {_reason(error)}", hint=f"logs: {session_folder()}/logs") from error
        yield
    finally:
        serve.shutdown()


def _reason(error: Exception) -> str:
    """Why the replicas did not start: the last line of the last traceback in Ray Serve's message."""
    from ray import serve

    try:
        status = serve.status().applications[_APPLICATION]
        texts = [each.message for each in status.deployments.values() if each.message] or [status.message]
    except (KeyError, RuntimeError):
        texts = [str(error)]
    return error_line("\n".join(texts)) or str(error)


def error_line(traceback: str) -> str:
    """The line of a traceback that says what is wrong, of several tracebacks the last; else the last line.

    >>> error_line("Traceback:\\n  raise ValueError()\\nValueError: no memory\\nlogs: here")
    'ValueError: no memory'
    """
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    last = next((n for n in reversed(range(len(lines))) if "Error" in lines[n].split(":")[0]), len(lines) - 1)
    # pydantic counts the errors in this line and says the first in the next.
    if "validation error" in " ".join(lines[last:][:1]) and last + 1 < len(lines):
        return lines[last + 1].partition(" [type=")[0]
    return lines[last] if lines else ""


def _watch(note: Note) -> None:
    """Tell of every change of the application's state until interrupted."""
    from ray import serve

    shown = "RUNNING"
    while True:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        state = str(serve.status().applications[_APPLICATION].status.value)
        if state != shown:
            note(f"served model: {state}")
            shown = state
