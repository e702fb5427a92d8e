"""What a Hugging Face folder says of a model beside its weights: config, tokenizer, generation config."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.export.folder import Dtype
from dapo_cli.policy.model import first_line, generation_config_json


@dataclass(frozen=True, slots=True)
class Described:
    """A model without its weights."""

    config: Any
    tokenizer: Any
    generation_config: Any

    @classmethod
    def read(cls, folder: Path) -> Described:
        """From a folder with config and tokenizer.

        Raises:
            DapoError: one is missing.
            UsageError: transformers does not know it as a language model.
        """
        from transformers import GenerationConfig

        config = _read_config(folder)
        tokenizer = read_tokenizer(folder)
        if (folder / "generation_config.json").is_file():
            return cls(config, tokenizer, GenerationConfig.from_pretrained(folder))
        return cls(config, tokenizer, GenerationConfig.from_model_config(config))

    def write(self, folder: Path, dtype: Dtype) -> None:
        """Put it into `folder`, with `dtype` in the config."""
        config = copy.deepcopy(self.config)
        config.dtype = dtype
        config.save_pretrained(folder)
        (folder / "generation_config.json").write_text(generation_config_json(self.generation_config), "utf-8")
        self.tokenizer.save_pretrained(folder)


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise DapoError(f"{folder / 'config.json'}: no such file", hint="Copy the model's config.json there.")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{folder / 'config.json'}: cannot be read: {first_line(error)}") from error
    kinds = config.architectures or []
    if type(config) not in AutoModelForCausalLM._model_mapping or not all(
        kind.endswith("ForCausalLM") for kind in kinds
    ):
        kind = ", ".join(kinds) or config.model_type
        raise UsageError(
            f"{folder / 'config.json'}: {kind}: not a language model that is converted",
            hint="value heads, reward models and models of images have other outputs than tokens",
        )
    return config


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in `folder`.

    Raises:
        DapoError: there is none: transformers itself makes an empty one of the config alone, without a word.
    """
    from transformers import AutoTokenizer

    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
    if not any((folder / name).is_file() for name in names):
        raise DapoError(
            f"{folder}: no tokenizer ({', '.join(names[:3])})", hint="Copy the base model's tokenizer files there."
        )
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # files of a tokenizer fail in any way they like
        raise DapoError(f"{folder}: the tokenizer cannot be loaded: {first_line(error)}") from error
