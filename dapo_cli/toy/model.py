"""The toy model: a Llama of 0.09M parameters, untrained, or warm-started once and kept in a cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

FORMAT_VERSION = 2
"""Raised when the same settings would give another model."""


def new_toy_model(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained toy model in evaluation mode and its tokenizer; the global random state is left as it was."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    from dapo_cli.toy.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # 32 wide: vLLM has no CPU kernel for narrower heads
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id
    )
    return model, tokenizer


def toy_model_name() -> str:
    """toy-<hash of everything that changes the warm-started model but code; FORMAT_VERSION stands for that>."""
    from dapo_cli.toy.task import GUESS, MOST_RAMBLING, RAMBLE, RAMBLE_ON, RESERVED_PROBLEMS, SLIP, toy_card
    from dapo_cli.toy.tokenizer import CHAT_TEMPLATE, vocabulary
    from dapo_cli.toy.warm_start import SETTINGS

    parts = [
        FORMAT_VERSION,
        SETTINGS,
        (GUESS, SLIP, RAMBLE, RAMBLE_ON, MOST_RAMBLING, RESERVED_PROBLEMS),
        toy_card().model_dump(),
        list(vocabulary()),
        CHAT_TEMPLATE,
    ]
    return f"toy-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


def toy_model_folder(cache_root: Path) -> Path:
    """The warm-started toy model as a Hugging Face folder `cache_root`/toy-<hash>, made if it is not there yet.

    Beside the model, toy.json holds the settings and the accuracy that was measured. Making it says so first.

    Raises:
        VerificationError: the warm start shares problems with the held-out ones.
    """
    from dapo_cli.toy.warm_start import SETTINGS, warm_start

    folder = cache_root / toy_model_name()
    if folder.is_dir():
        return folder
    from dapo_cli.policy.model import quiet_transformers

    quiet_transformers()
    print(f"making the toy model in {folder}, about 30 seconds", flush=True)
    model, tokenizer = new_toy_model(seed=SETTINGS["seed"])
    record = warm_start(model, tokenizer)
    measured = ", ".join(f"{share:.1%} ({sampling})" for sampling, share in record["heldout_accuracy"].items())
    low, high = record["target_accuracy"]
    print(f"toy model: {measured} of answers to held-out sums right, meant to be {low:.0%} to {high:.0%}", flush=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "toy.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        _keep_first(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _keep_first(temporary: Path, folder: Path) -> None:
    """Rename into place; a twin made by another process meanwhile is as good."""
    try:
        temporary.replace(folder)
    except OSError:
        if not (folder / "toy.json").is_file():
            raise
