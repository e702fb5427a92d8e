"""Soft overlong punishment: a length term added to the score of responses close to the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def soft_overlong_punishment(
    response_tokens: npt.NDArray[np.integer[Any]],  # [B]
    max_response_tokens: int,
    buffer_length: int,
    factor: float,
) -> npt.NDArray[np.float64]:  # [B]
    """Punishment of each response, between -factor and 0 (paper, equation 13, times `factor`).

    With `expected = max_response_tokens - buffer_length`: 0 up to `expected` tokens, then falling linearly to -factor
    at `max_response_tokens`, and -factor beyond. Independent of correctness. A response's length counts its stop token.
    A buffer of 0 or a factor of 0 switches the punishment off.

    >>> soft_overlong_punishment(np.array([16384, 18432, 20480]), 20480, 4096, 1.0).tolist()
    [0.0, -0.5, -1.0]
    """
    if buffer_length == 0 or factor == 0:
        return np.zeros(response_tokens.shape, dtype=np.float64)
    tokens_left = max_response_tokens - buffer_length - response_tokens.astype(np.int64)
    return np.clip(tokens_left / buffer_length, -1.0, 0.0) * factor
