"""GGML's quantizations that the gguf package can dequantize."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape


def _can_be_dequantized(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros(quant_shape_to_byte_shape((1, 256), kind), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


DEQUANTIZED = [
    kind
    for kind in GGMLQuantizationType
    if kind.name.startswith(("Q", "IQ", "TQ", "MXFP4")) and _can_be_dequantized(kind)
]
