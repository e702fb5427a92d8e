"""The README.md of an exported model: where its weights come from, and what they scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TRAINED_NOTE = "Trained with DAPO (arXiv 2503.14476) by the `dapo` command."
CONTAMINATED_NOTE = "**CONTAMINATED**: evaluated problems are in the training data; the scores below say little."


def model_card(
    name: str, provenance: Mapping[str, Any], library: str = "transformers", origin: str = TRAINED_NOTE
) -> str:
    """A Hugging Face model card with one line for each value of `provenance`; nested mappings become sections.

    `library` is what loads it, `origin` a sentence on where it comes
    from. A true `contaminated` is written out as a warning at the top.
    """
    plain = {key: value for key, value in provenance.items() if not isinstance(value, Mapping)}
    sections = {key: value for key, value in provenance.items() if isinstance(value, Mapping)}
    lines = [
        "---",
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        "tags: [dapo]",
        "---",
        "",
        f"# {name}",
    ]
    lines += ["", origin]
    if provenance.get("contaminated"):
        lines += ["", CONTAMINATED_NOTE]
    lines += ["", *_bullets(plain)]
    for title, values in sections.items():
        lines += ["", f"## {_words(title)}", "", *_bullets(values)]
    return "\n".join(lines) + "\n"


def _bullets(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield f"- {_words(key)}: {f'{value:.4g}' if isinstance(value, float) else value}"


def _words(key: str) -> str:
    return key if "/" in key else key.replace("_", " ")
