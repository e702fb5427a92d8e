"""One seed per rollout, so that a response depends on the weights and its own seed only, not on what runs beside it."""

from __future__ import annotations

import hashlib


def rollout_seed(*parts: object) -> int:
    """A 64-bit seed hashed from `parts`, such as (run seed, stream index, sample index).

    Hashing keeps neighbouring groups from sharing streams, and gives duplicated prompts different responses.

    >>> rollout_seed("rollout", 0, 1, 2) == rollout_seed("rollout", 0, 1, 2)
    True
    >>> rollout_seed("rollout", 0, 1, 2) == rollout_seed("rollout", 0, 2, 1)
    False
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
