"""Texts in which the boundaries of tokens, of code points and of visible characters differ."""

from __future__ import annotations

import random

PARTS = [
    "a",
    "stop",
    " ",
    "\n",
    "ß",
    "e\u0301",  # a letter and its accent
    "n\u0303\u0323",
    "日本語",
    "漢",
    "한국",
    "שלום",
    "नमस्ते",
    "🌊",
    "👩\u200d👩\u200d👧",  # three people, one visible character
    "🇩🇪",
    "👍🏽",
    "\u2028",
    "\ufeff",
    "\x00",
    "\U0010ffff",
]
BROKEN = [b"\x80", b"\xe2\x82", b"\xf0\x9f\x8c", b"\xc0\xaf", b"\xed\xa0\x80", b"\xff"]


def random_bytes(seed: int) -> bytes:
    """Some parts of text; every third time, invalid bytes are inserted."""
    rng = random.Random(seed)
    parts = [rng.choice(PARTS).encode() for _ in range(rng.randint(1, 9))]
    if seed % 3 == 0:
        parts.insert(rng.randint(0, len(parts)), rng.choice(BROKEN))
    return b"".join(parts)


SCRIPTS = {f"text {seed}": list(random_bytes(seed)) for seed in range(60)}
