"""Counter-based random numbers: each depends only on seed and index, so a resumed request samples the same tokens."""

from __future__ import annotations


def _mix(value: int) -> int:
    """Apply the finalizer of SplitMix64 (Steele, Lea, Flood 2014) to 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one choice as an int64. Choice 0 has the request's seed, others a hash of seed and choice."""
    if choice == 0:
        return seed
    return _mix(seed + choice * 0x9E3779B97F4A7C15) - (1 << 63)


def uniform(seed: int, index: int) -> float:
    """Return the random number in [0, 1) for output token ``index``. The number depends only on the arguments."""
    return (_mix(_mix(seed) + (index + 1) * 0x9E3779B97F4A7C15) >> 11) / (1 << 53)
