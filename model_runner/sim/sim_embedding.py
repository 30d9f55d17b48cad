"""Artificial embeddings of the simulated model, which depend on every token of the context."""

from __future__ import annotations

import numpy as np

DIMENSIONS = 64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def embedding_of(context: int) -> bytes:
    """Return the normalized vector of a context as little-endian float32. context: hash of the context."""
    mixed = (np.uint64(context) ^ np.arange(1, DIMENSIONS + 1, dtype=np.uint64) * GOLDEN) * np.uint64(
        0xBF58476D1CE4E5B9
    )
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(29)
    values = (mixed >> np.uint64(11)) / float(1 << 53) - 0.5
    return (values / np.linalg.norm(values)).astype("<f4").tobytes()
