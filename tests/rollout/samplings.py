"""A sampling with every field neutral, and changes of it."""

from __future__ import annotations

from typing import Any

from dapo_cli.types import Sampling

STOP = 3
SAMPLING = Sampling(
    max_response_tokens=12,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    stop_token_ids=(STOP,),
    stop_strings=(),
)


def changed(**fields: Any) -> Sampling:
    """SAMPLING with these fields changed."""
    return Sampling(**{name: getattr(SAMPLING, name) for name in Sampling.__slots__} | fields)
