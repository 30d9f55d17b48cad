"""Vectors as the engine sends them, and their forms in responses.

numpy is imported when a response first needs it: its import would make the start of the front longer.
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
    """Return a vector of the engine, which is little-endian float32."""
    import numpy as np

    return np.frombuffer(data, "<f4")


def shortened(vector: Vector, dimensions: int | None) -> Vector:
    """Return the first ``dimensions`` numbers, scaled to a vector of length 1; the whole vector if it is None."""
    import numpy as np

    if dimensions is None or dimensions >= len(vector):
        return vector
    part = vector[:dimensions]
    length = float(np.linalg.norm(part.astype(np.float64)))
    return (part / np.float32(length)).astype("<f4") if length else part


def written(vector: Vector, encoding: str) -> list[float] | str:
    """Return the form of a vector in a response. encoding: "float", or "base64" for little-endian float32."""
    return base64.b64encode(vector.tobytes()).decode("ascii") if encoding == "base64" else vector.tolist()


def similarities(queries: Sequence[bytes], documents: Sequence[bytes]) -> list[float]:
    """Return the cosine of each document and its query. There is one query for all documents, or one for each."""
    import numpy as np

    left, right = (np.stack([vector_of(data) for data in side]).astype(np.float64) for side in (queries, documents))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: list[float] = ((left * right).sum(axis=1) / np.where(lengths == 0, 1, lengths)).tolist()
    return cosines
