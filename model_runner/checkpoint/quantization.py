"""Determines from config.json whether the weights of a checkpoint are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def quantization_method(fields: Mapping[str, Any]) -> str | None:
    """Return the quantization method that the configuration states; None if it states none."""
    parts = [fields, *(value for value in fields.values() if isinstance(value, dict))]
    for part in parts:
        settings = part.get("quantization_config") or part.get("compression_config")
        if isinstance(settings, dict):
            is_bitsandbytes = settings.get("load_in_4bit") or settings.get("load_in_8bit")
            return str(settings.get("quant_method") or ("bitsandbytes" if is_bitsandbytes else "unknown method"))
        if settings:
            return "unknown method"
    return None
