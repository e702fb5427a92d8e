"""What a served model is given as vLLM's arguments; nothing that decides a response comes from its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.policy.model import max_positions
from dapo_cli.rollout.vllm_arguments import CPU_HEAD_WIDTHS, Device, cache_block_bytes, cpu_cache_bytes, head_width

_CPU_PREFILL_TOKENS, _CPU_REQUESTS = 4096, 64
_STATED = ("model", "served-model-name", "tensor-parallel-size", "max-model-len", "dtype", "generation-config")
"""Arguments that are options of `dapo serve`, or that it has to set itself."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is to be served, with all that was left to be found out filled in."""

    folder: Path
    name: str
    dtype: str
    tensor_parallel: int
    max_model_tokens: int | None
    """Prompt and response; None: the positions the model has."""
    chat_template: Path | None
    extra: tuple[str, ...]
    """vLLM's own arguments, KEY=VALUE or KEY."""


def vllm_arguments(served: Served, device: Device, config: Any) -> list[str]:
    """The arguments of `vllm serve`, for a model with this Hugging Face config.

    Raises:
        UsageError: an extra argument that is stated elsewhere, a chat template that does not exist, or on a CPU a
            model vLLM has no kernels for.
    """
    arguments = {
        # A replica of a cluster that was joined has another working directory.
        "model": str(served.folder.resolve()),
        "served-model-name": served.name,
        "tensor-parallel-size": str(served.tensor_parallel),
        "dtype": served.dtype,
        "generation-config": "vllm",
        "distributed-executor-backend": "uni" if served.tensor_parallel == 1 else "mp",
    }
    if served.max_model_tokens is not None:
        arguments["max-model-len"] = str(served.max_model_tokens)
    if served.chat_template is not None:
        if not served.chat_template.is_file():
            raise UsageError(f"--chat-template {served.chat_template}: no such file")
        arguments["chat-template"] = str(served.chat_template.resolve())
    if device == "cpu":
        arguments |= _cpu_arguments(served, config)
    arguments |= _extra(served.extra)
    return [part for key, value in arguments.items() for part in ([f"--{key}", value] if value else [f"--{key}"])]


def _cpu_arguments(served: Served, config: Any) -> dict[str, str]:
    text = config.get_text_config()
    width = head_width(text)
    if width not in CPU_HEAD_WIDTHS:
        # It would fail at the first request.
        raise UsageError(f"{served.name}: its attention heads are {width} wide; vLLM on a CPU takes {CPU_HEAD_WIDTHS}")
    longest = served.max_model_tokens or max_positions(config) or _CPU_PREFILL_TOKENS
    dtype = served.dtype if served.dtype != "auto" else str(text.dtype).removeprefix("torch.")
    block = cache_block_bytes(config, "float32" if dtype == "float32" else "bfloat16", served.tensor_parallel)
    return {
        # On CPUs a prompt cut in two ends the engine as soon as a request has a seed.
        "no-enable-chunked-prefill": "",
        "max-num-batched-tokens": str(max(longest, _CPU_PREFILL_TOKENS)),
        "max-num-seqs": str(_CPU_REQUESTS),
        "kv-cache-memory-bytes": str(cpu_cache_bytes(block, longest, _CPU_REQUESTS)),
        "enforce-eager": "",
    }


def _extra(extra: Sequence[str]) -> dict[str, str]:
    given = {}
    for text in extra:
        key, _, value = text.partition("=")
        key = key.removeprefix("--").replace("_", "-")
        if not key or key in _STATED:
            what = "is stated by dapo serve" if key else "want KEY=VALUE, such as max-num-seqs=64"
            raise UsageError(f"--vllm {text}: {what}", hint="dapo serve --help")
        given[key] = value
    return given


def parse_arguments(arguments: Sequence[str]) -> Any:
    """The arguments as vLLM's server reads them; needs vLLM.

    Raises:
        UsageError: one that vLLM does not know or take.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> None:
            raise UsageError(f"--vllm: {message}", hint="vllm serve --help=all lists vLLM's arguments")

    parsed = make_arg_parser(Parser(prog="dapo serve")).parse_args(list(arguments))
    try:
        validate_parsed_serve_args(parsed)
    except (TypeError, ValueError) as error:
        raise UsageError(f"dapo serve: {error}") from error
    return parsed
