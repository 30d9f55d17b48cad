"""Converts vectors from the engine's format to the formats of responses, and computes similarities.

numpy is imported when a response first needs it, because its import would delay the start of the front process.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]


def vector_of(data: bytes) -> Vector:
    """Return a vector from ``data``, the little-endian float32 values that the engine sends."""
    import numpy as np

    return np.frombuffer(data, "<f4")


def shortened(vector: Vector, dimensions: int | None) -> Vector:
    """Return the first ``dimensions`` components, scaled to length 1; the whole vector if ``dimensions`` is None."""
    import numpy as np

    if dimensions is None or dimensions >= len(vector):
        return vector
    part = vector[:dimensions]
    length = float(np.linalg.norm(part.astype(np.float64)))
    return (part / np.float32(length)).astype("<f4") if length else part


def written(vector: Vector, encoding: str) -> list[float] | str:
    """Return a vector in the format of a response.

    encoding: "float" for a list, or "base64" for base64-encoded little-endian float32 values.
    """
    return base64.b64encode(vector.tobytes()).decode("ascii") if encoding == "base64" else vector.tolist()


def similarities(queries: Sequence[bytes], documents: Sequence[bytes]) -> list[float]:
    """Return the cosine similarity of each document and its query.

    queries: one vector for all documents, or one vector per document.
    """
    import numpy as np

    left, right = (np.stack([vector_of(data) for data in side]).astype(np.float64) for side in (queries, documents))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: list[float] = ((left * right).sum(axis=1) / np.where(lengths == 0, 1, lengths)).tolist()
    return cosines
