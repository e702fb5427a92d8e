"""Whether vLLM loads an exported folder as the same model, tried in a process of its own.

Usage: python -m dapo_cli.export.vllm_check FOLDER DTYPE DEVICE TENSOR_PARALLEL; the last line of its output is JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.evaluation.engines import choose_tensor_parallel, weights_bytes
from dapo_cli.export.comparison import PROBE_TOKENS, probe_ids
from dapo_cli.export.folder import Dtype
from dapo_cli.export.host_memory import available_bytes
from dapo_cli.rollout.vllm_arguments import CPU_HEAD_WIDTHS, Device, head_width
from dapo_cli.rollout.vllm_environment import installed_vllm

if TYPE_CHECKING:
    import torch

# Other kernels and another order of sums. Mean difference of log-probs: equal weights 0.02 to 0.08 in bfloat16, other
# weights from 0.24 on.
TOLERANCE = {"float32": 0.01, "bfloat16": 0.15, "float16": 0.05}
_TIMEOUT_SECONDS = 1800
_CPU_MEMORY_FACTOR, _CPU_ENGINE_BYTES = 1.5, 3 * 10**9


def reason_not_to_ask(folder: Path, config: Any) -> str | None:
    """Why vLLM is not asked about a model here; None: it is."""
    import torch

    installed = installed_vllm()
    if installed is None:
        return "vLLM is not installed"
    if installed[0] == "cuda":
        return None if torch.cuda.is_available() else "vLLM is installed for GPUs, and there is none"
    width = head_width(config.get_text_config())
    if width not in CPU_HEAD_WIDTHS:
        return f"vLLM on a CPU has no kernel for attention heads {width} wide"
    needed, free = _CPU_MEMORY_FACTOR * weights_bytes(folder) + _CPU_ENGINE_BYTES, available_bytes()
    if free is not None and needed > free:
        return f"vLLM on a CPU would take {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
    return None


def vllm_difference(folder: Path, config: Any, dtype: Dtype, expected: torch.Tensor) -> float:
    """Mean difference between vLLM's log-probs of the fixed prompt and `expected` [16, V].

    Raises:
        UsageError: the visible GPUs do not hold the weights, or vLLM does not take such a model.
        VerificationError: vLLM cannot load the folder, or computes something else.
    """
    import torch

    installed = installed_vllm()
    assert installed is not None
    device = installed[0]
    count = torch.cuda.device_count() if device == "cuda" else 0
    memory = [torch.cuda.get_device_properties(number).total_memory for number in range(count)]
    heads = config.get_text_config().num_attention_heads
    parallel = choose_tensor_parallel(weights_bytes(folder), memory, heads)
    command = [sys.executable, "-m", __spec__.name, str(folder), dtype, device, str(parallel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = [line for line in done.stderr.strip().splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise VerificationError(f"vLLM cannot load the exported folder: {said[-1].strip()}")
    answer = json.loads(lines[-1])
    if "refused" in answer:
        raise UsageError(answer["refused"])
    found = torch.tensor(answer["logprobs"])
    wanted = expected[:-1].gather(1, torch.tensor(probe_ids(config))[1:, None])[:, 0]
    difference = float((found - wanted).abs().mean())
    if not difference <= TOLERANCE[dtype]:
        raise VerificationError(
            f"log-probs of a fixed prompt in vLLM are off by {difference:.3g} on average, at most {TOLERANCE[dtype]} "
            "is rounding"
        )
    return difference


def _ask(folder: str, dtype: str, device: Device, tensor_parallel: int) -> list[float]:
    """The log-probs that vLLM gives the tokens of the fixed prompt after the first, [15]."""
    import numpy as np
    from transformers import AutoConfig, AutoTokenizer

    from dapo_cli.recipe.loading import load_recipe
    from dapo_cli.rollout.vllm_engine import VLLMEngine

    recipe = load_recipe("demo", []).recipe
    changes = {
        "model": recipe.model.model_copy(update={"path": folder, "dtype": dtype, "lora": None}),
        "prompt": recipe.prompt.model_copy(update={"max_prompt_tokens": PROBE_TOKENS}),
        "rollout": recipe.rollout.model_copy(
            update={
                "max_response_tokens": PROBE_TOKENS,
                "max_concurrent_rollouts": 1,
                "tensor_parallel": tensor_parallel,
                "enforce_eager": True,
            }
        ),
    }
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = VLLMEngine(
        recipe.model_copy(update=changes),
        folder,
        tokenizer,
        device,
        lambda text: print(text, file=sys.stderr),
        reads_weights=True,
    )
    try:
        ids = np.array(probe_ids(AutoConfig.from_pretrained(folder)), np.int32)
        [logprobs] = engine.prompt_logprobs([ids])
    finally:
        engine.close()
    return [float(value) for value in logprobs]


def main(folder: str, dtype: str, device: Device, tensor_parallel: str) -> None:
    """Print the answer as JSON."""
    try:
        answer: dict[str, Any] = {"logprobs": _ask(folder, dtype, device, int(tensor_parallel))}
    except UsageError as error:
        answer = {"refused": error.message}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
