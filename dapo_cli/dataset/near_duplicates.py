"""Problems that resemble an earlier one without being the same: MinHash over runs of five words (Broder 1997)."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HASHES = 64
BANDS = (
    16  # of 4 hashes: at a similarity of 0.8, a pair meets in some band with probability 1 - (1 - 0.8**4)**16 = 0.9998
)
SIMILAR = 0.8
SHINGLE_WORDS = 5

_PRIME = np.uint64(2**31 - 1)
_generator = np.random.Generator(np.random.Philox(2024))
_FACTORS = _generator.integers(1, 2**31 - 1, size=(HASHES, 1), dtype=np.uint64)
_OFFSETS = _generator.integers(0, 2**31 - 1, size=(HASHES, 1), dtype=np.uint64)
# Han characters stand alone: Chinese is written without spaces.
_WORD = re.compile(r"[\u4e00-\u9fff]|[^\W\d_\u4e00-\u9fff]+|\d+")


class SimilarPair(NamedTuple):
    """Two problems by their positions, the later one first, and their estimated similarity in [0, 1]."""

    later: int
    earlier: int
    similarity: float


def signature(text: str) -> npt.NDArray[np.uint32]:
    """The MinHash of a text, [HASHES]: two texts agree in a share of it that estimates their Jaccard similarity.

    >>> bool((signature("Find the sum of x and y.") == signature("Find the sum of x, and y!")).all())
    True
    """
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    count = max(len(words) - SHINGLE_WORDS + 1, 1)
    shingles = {" ".join(words[start : start + SHINGLE_WORDS]) for start in range(count)}
    codes = np.array([zlib.crc32(shingle.encode()) & 0x7FFFFFFF for shingle in shingles], dtype=np.uint64)
    hashed = (_FACTORS * codes + _OFFSETS) % _PRIME  # [HASHES, shingles]; below 2**62 before the remainder
    smallest: npt.NDArray[np.uint32] = hashed.min(axis=1).astype(np.uint32)
    return smallest


def similar_pairs(signatures: Sequence[npt.NDArray[np.uint32]]) -> list[SimilarPair]:
    """For each text that resembles an earlier one at `SIMILAR` or more: the pair with the most similar one met.

    Every text is compared with the first of each bucket it falls into, so that the work is linear in the texts.
    """
    rows = HASHES // BANDS
    first: dict[tuple[int, bytes], int] = {}
    pairs = []
    for later, own in enumerate(signatures):
        met = {first.setdefault((band, own[band * rows : (band + 1) * rows].tobytes()), later) for band in range(BANDS)}
        found = [SimilarPair(later, earlier, float((own == signatures[earlier]).mean())) for earlier in met - {later}]
        best = max(found, key=lambda pair: (pair.similarity, -pair.earlier), default=None)
        if best is not None and best.similarity >= SIMILAR:
            pairs.append(best)
    return pairs
