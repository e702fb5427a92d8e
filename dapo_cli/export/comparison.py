"""Whether an exported model is the one that was trained: names, shapes, values, log-probs, tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo_cli.errors import VerificationError

if TYPE_CHECKING:
    import torch

PROBE_TOKENS = 16
_PROBE_TEXT = "Solve 3 + 4 = ? Answer: 7 \u2713\n"
# Equal weights in equal kernels; the margin is for libraries whose sums depend on memory alignment.
_LOGPROB_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}


def refuse_differences(destination: Path, differences: Iterator[str]) -> None:
    """Pass when there are none.

    Raises:
        VerificationError: there are; each is named.
    """
    problems = list(differences)
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise VerificationError(f"{destination}: the exported model is not the one that was trained\n{lines}")


def refuse_not_finite(state: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Pass when every value is finite after the cast.

    Raises:
        VerificationError: some are not; names the tensors.
    """
    import torch

    broken = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise VerificationError(f"export: values that are not finite in {dtype}: {', '.join(broken[:5])}")


def tensor_differences(expected: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor]) -> Iterator[str]:
    """What two state dicts do not share: names, shapes, dtypes, values; one line each."""
    import torch

    for name in sorted({*expected, *loaded}):
        if name not in expected or name not in loaded:
            yield f"{name}: only in the {'loaded' if name in loaded else 'trained'} model"
        elif expected[name].shape != loaded[name].shape or expected[name].dtype != loaded[name].dtype:
            want, got = (f"{tuple(t.shape)} {t.dtype}" for t in (expected[name], loaded[name]))
            yield f"{name}: {want}, loaded as {got}"
        elif not torch.equal(expected[name], loaded[name]):
            yield f"{name}: other values after loading"


def probe_ids(config: Any) -> list[int]:
    """A fixed prompt for a model with this config, `PROBE_TOKENS` ids."""
    return [7 * n % config.get_text_config().vocab_size for n in range(PROBE_TOKENS)]


def probe_logprobs(model: Any) -> torch.Tensor:
    """Log-probs of every next token of a fixed prompt, [16, V] float32."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([probe_ids(model.config)])).logits[0]
    logprobs: torch.Tensor = logits.float().log_softmax(-1)
    return logprobs


def logprob_difference(expected: torch.Tensor, loaded: torch.Tensor, dtype: str) -> Iterator[str]:
    """A line if two results of `probe_logprobs` differ by more than equal weights in `dtype` can."""
    worst = float((expected - loaded).abs().max())
    if not worst <= _LOGPROB_TOLERANCE[dtype]:
        yield f"log-probs of a fixed prompt are off by {worst:.3g}"


def tokenizer_differences(tokenizer: Any, loaded: Any) -> Iterator[str]:
    """What two tokenizers do not share, one line each."""
    want = {"vocabulary": tokenizer.get_vocab(), "tokens of a fixed text": tokenizer(_PROBE_TEXT)["input_ids"]}
    got = {"vocabulary": loaded.get_vocab(), "tokens of a fixed text": loaded(_PROBE_TEXT)["input_ids"]}
    for field in ("chat_template", "eos_token_id", "pad_token_id", "bos_token_id"):
        want[field], got[field] = getattr(tokenizer, field), getattr(loaded, field)
    yield from (f"tokenizer: differs in {field}" for field in want if want[field] != got[field])


def comparable_generation_config(generation_config: Any) -> dict[str, Any]:
    """Its settings as a file holds them, without the version of the library."""
    values: dict[str, Any] = json.loads(json.dumps(generation_config.to_diff_dict()))
    values.pop("transformers_version", None)
    return values
