"""How much memory `dapo convert` takes for a model of 1.5 billion parameters, and how its time compares to `cp`.

    python benchmarks/convert_memory.py [--layers 28] [--ranks 2] [--folder DIR] [-- OPTIONS OF dapo convert]

Writes a run whose checkpoint holds random weights of the shape of Qwen2.5-1.5B in float32, as one process saves them
(`--ranks 0`) or as ranks do, in a folder with some 30 GB free; then converts it in a process of its own. The peak is
of the whole process, with Python, torch and the pages of files that it has mapped.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).resolve().parents[1] / "tests"
GIB = 2**30


def shapes_of(config: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight of a model with this config."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():  # a tied head is listed once
        yield name, tuple(parameter.shape)


def write_run(folder: Path, layers: int, ranks: int) -> Path:
    """A run with one sealed checkpoint; returns its directory."""
    from own_runs import checkpoint_folder, make_run, save_on_ranks
    from ranks import start
    from transformers import Qwen2Config

    from dapo_cli.export.lazy_tensors import LazyTensor
    from dapo_cli.export.safetensors_files import write_safetensors
    from dapo_cli.toy.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen2ForCausalLM"],
    )
    base = folder / "base"
    base.mkdir()
    config.save_pretrained(base)
    lazy = {name: LazyTensor(shape, torch.float32, partial(random_tensor, shape)) for name, shape in shapes_of(config)}
    write_safetensors(lazy, base, 10**12, print)
    run = make_run(folder / "run", base, tokenizer)
    if ranks == 0:
        checkpoint_folder(run, base, only=("model.safetensors",))
    else:
        start(ranks, save_on_ranks, folder, ("base",))
        checkpoint_folder(run, folder / "base.saved")
    return run.path


def random_tensor(shape: tuple[int, ...]) -> torch.Tensor:
    """Values of the size that trained weights have."""
    return torch.randn(shape) * 0.02


def convert(arguments: list[str]) -> tuple[float, int]:
    """Seconds and peak memory in bytes of `dapo convert`, in a process of its own.

    The peak is the new process's own: getrusage would count what this one held when it started it.
    """
    code = (
        "import atexit, re, pathlib\n"
        "status = pathlib.Path('/proc/self/status')\n"
        "atexit.register(lambda: print('peak_kib', re.search(r'VmHWM:\\s+(\\d+)', status.read_text())[1]))\n"
        "from dapo_cli.cli import main; main()"
    )
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, "convert", *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return time.perf_counter() - started, int(done.stdout.split("peak_kib")[1]) * 1024


def main() -> None:
    """Write the run, copy its checkpoint, convert it, and print both."""
    sys.path += [str(TESTS / "export"), str(TESTS / "policy")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("options", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        run = write_run(folder, asked.layers, asked.ranks)
        checkpoint = run / "checkpoints" / "step_3"
        size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
        started = time.perf_counter()
        subprocess.run(["cp", "-r", str(checkpoint), str(folder / "copy")], check=True)
        subprocess.run(["sync", "-f", str(folder / "copy")], check=True)
        copying = time.perf_counter() - started
        shutil.rmtree(folder / "copy")
        seconds, peak = convert([str(run), "--out", str(folder / "out"), *asked.options])
        largest = max(path.stat().st_size for path in (folder / "out").glob("*.safetensors"))
        print(
            f"checkpoint {size / 1e9:.1f} GB; cp {copying:.1f} s; convert {seconds:.1f} s, "
            f"{seconds / copying:.1f} x cp; peak memory {peak / GIB:.2f} GiB, largest file {largest / GIB:.2f} GiB"
        )


if __name__ == "__main__":
    main()
