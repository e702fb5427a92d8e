"""Export a policy as a Hugging Face folder, believed only after it was loaded again and found equal."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dapo_cli import __version__
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.export.model_card import model_card

if TYPE_CHECKING:
    import torch

Dtype = Literal["float32", "bfloat16", "float16"]
MAX_SHARD_SIZE = "5GB"
_PROBE_TEXT = "Solve 3 + 4 = ? Answer: 7 \u2713\n"
# Equal weights in equal kernels; the margin is for libraries whose sums depend on memory alignment.
_LOGPROB_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}


def export_folder(model: Any, tokenizer: Any, destination: Path, dtype: Dtype, provenance: Mapping[str, Any]) -> Path:
    """Write `model` in `dtype` with its tokenizer, generation config and model card; returns `destination`.

    The folder is written beside its destination, loaded again, compared with the model after the cast (names, shapes,
    values, tied head, log-probs, tokens, generation config), and only then renamed. `model` is left as it is; two more
    copies of it are in memory meanwhile.

    Raises:
        UsageError: `destination` exists and is not an empty folder, or an unknown dtype.
        VerificationError: what was written is not the model; nothing is left behind.
    """
    destination = destination.resolve()
    from dapo_cli.policy.model import quiet_transformers

    quiet_transformers()
    refuse_dtype(dtype)
    with folder_in_the_making(destination) as partial:
        expected = _cast_copy(model, dtype)
        _write(expected, model.generation_config, tokenizer, partial)
        (partial / "README.md").write_text(model_card(destination.name, {**provenance, **made_by(dtype)}), "utf-8")
        refuse_differences(destination, _differences(expected, model.generation_config, tokenizer, partial))
    return destination


def refuse_dtype(dtype: str) -> None:
    """Pass for a precision that can be written.

    Raises:
        UsageError: it is another.
    """
    if dtype not in get_args(Dtype):
        raise UsageError(f"--dtype: must be one of {', '.join(get_args(Dtype))}, got {dtype!r}")


@contextmanager
def folder_in_the_making(destination: Path) -> Iterator[Path]:
    """A new folder beside `destination` that becomes `destination` when the body ends well, else vanishes.

    Raises:
        UsageError: `destination` exists and is not an empty folder.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"--out: {destination} exists and is not an empty folder", hint="Give another --out.")
    partial = destination.with_name(f".{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if destination.exists():
            destination.rmdir()
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_differences(destination: Path, differences: Iterator[str]) -> None:
    """Pass when there are none.

    Raises:
        VerificationError: there are; each is named.
    """
    problems = list(differences)
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise VerificationError(f"{destination}: the exported model is not the one that was trained\n{lines}")


def _cast_copy(model: Any, dtype: Dtype) -> Any:
    """The model in `dtype` on the CPU, made anew from its config.

    `model.to(dtype)` would also cast the buffers that no checkpoint holds (rotary frequencies), which a loaded model
    computes in float32.
    """
    import torch
    from transformers import AutoModelForCausalLM

    state = {
        name: tensor.detach().to("cpu", getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in model.state_dict().items()
    }
    refuse_not_finite(state, dtype)
    config = copy.deepcopy(model.config)
    with torch.random.fork_rng(devices=[]):  # the initial values are thrown away; training must not notice
        expected = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="eager")
    expected.load_state_dict(state)
    lost = "; ".join(tensor_differences(state, expected.state_dict()))
    if lost:
        raise VerificationError(f"export: the model does not fit its own config: {lost}")
    return expected.eval()


def refuse_not_finite(state: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Pass when every value is finite after the cast.

    Raises:
        VerificationError: some are not; names the tensors.
    """
    import torch

    broken = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise VerificationError(f"export: values that are not finite in {dtype}: {', '.join(broken[:5])}")


def _write(expected: Any, generation_config: Any, tokenizer: Any, folder: Path) -> None:
    from transformers import GenerationConfig

    from dapo_cli.policy.model import generation_config_json

    # transformers refuses to save some published generation configs (temperature without do_sample).
    expected.generation_config = GenerationConfig()
    expected.save_pretrained(folder, max_shard_size=MAX_SHARD_SIZE)
    (folder / "generation_config.json").write_text(generation_config_json(generation_config), "utf-8")
    tokenizer.save_pretrained(folder)


def made_by(dtype: Dtype) -> dict[str, Any]:
    """Precision and versions, for the model card."""
    import torch
    import transformers

    versions = {"dapo": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {"dtype": dtype, "versions": versions}


def _differences(expected: Any, generation_config: Any, tokenizer: Any, folder: Path) -> Iterator[str]:
    """What a fresh load of `folder` has that is not as expected, one line each."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype="auto", output_loading_info=True
        )
        loaded_tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # whatever stops a loader stops the user's too
        yield f"cannot be loaded: {type(error).__name__}: {error}"
        return
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        yield from (f"{kind.replace('_', ' ')}: {name}" for name in sorted(map(str, info[kind])))
    different = list(tensor_differences(expected.state_dict(), loaded.state_dict()))
    yield from different
    if head_is_tied(loaded) != head_is_tied(expected):
        yield f"output head: tied {head_is_tied(expected)}, loaded as tied {head_is_tied(loaded)}"
    if not different:
        yield from _logprob_difference(expected, loaded)
    yield from tokenizer_differences(tokenizer, loaded_tokenizer)
    if comparable_generation_config(loaded.generation_config) != comparable_generation_config(generation_config):
        yield "generation_config.json: differs"


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


def _logprob_difference(expected: Any, loaded: Any) -> Iterator[str]:
    dtype = str(expected.dtype).removeprefix("torch.")
    yield from logprob_difference(probe_logprobs(expected), probe_logprobs(loaded.eval()), dtype)


def probe_logprobs(model: Any) -> torch.Tensor:
    """Log-probs of every next token of a fixed prompt, [16, V] float32."""
    import torch

    ids = (torch.arange(16) * 7 % model.config.get_text_config().vocab_size)[None]  # [1, 16]
    with torch.no_grad():
        logprobs: torch.Tensor = model(input_ids=ids).logits[0].float().log_softmax(-1)
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


def head_is_tied(model: Any) -> bool:
    """Whether the output head is the embeddings."""
    return bool(model.get_output_embeddings().weight is model.get_input_embeddings().weight)


def comparable_generation_config(generation_config: Any) -> dict[str, Any]:
    """Its settings as a file holds them, without the version of the library."""
    values: dict[str, Any] = json.loads(json.dumps(generation_config.to_diff_dict()))
    values.pop("transformers_version", None)
    return values
