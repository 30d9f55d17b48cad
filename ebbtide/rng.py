"""Counter-based random numbers: a function of seed and index only, so a retracted request draws the same again."""

from __future__ import annotations


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def choice_seed(seed: int, choice: int) -> int:
    """Seed of choice ``choice`` of n: choice 0 keeps the request's seed, the others get an unrelated one. An int64."""
    if choice == 0:
        return seed
    return _mix(seed + choice * 0x9E3779B97F4A7C15) - (1 << 63)


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) that decides output token ``index``: a function of its arguments only."""
    return (_mix(_mix(seed) + (index + 1) * 0x9E3779B97F4A7C15) >> 11) / (1 << 53)
