"""The text of a response, the same for every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.types import Sampling


def response_text(response_ids: npt.NDArray[np.int32], sampling: Sampling, tokenizer: Any) -> str:
    """The text of `response_ids` [response tokens] without the stop token, cut before the first stop string."""
    ended = len(response_ids) > 0 and int(response_ids[-1]) in sampling.stop_token_ids
    text: str = tokenizer.decode(response_ids[:-1] if ended else response_ids, skip_special_tokens=True)
    cut = min((at for stop in sampling.stop_strings if (at := text.find(stop)) >= 0), default=len(text))
    return text[:cut]
