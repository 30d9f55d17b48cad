"""Reads configurations of native families without transformers, whose import takes longer than loading a small model.

Only simple configurations are read here: every field has the right type and a valid value, and all layers have the same
rotary embedding. Any other configuration is left to transformers, which converts or refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Positive = Annotated[float, Meta(gt=0)]
Window = Annotated[int, Meta(ge=0)]
DTYPES = ("float32", "float16", "bfloat16")
LAYER_TYPES = ("full_attention", "sliding_attention")
ROPE_REQUIRED = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor"},
    "longrope": {"short_factor", "long_factor"},
}
WITH_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")
DEFAULT_THETA = 10000.0
REPLACED = ("torch_dtype", "rope_theta", "rope_scaling")
SMALLEST_BETA = 1e-30
SMALL_HEAD = 4  # transformers accepts an odd head size only up to this size


class Rope(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters of the rotary embedding. Absent parameters remain unset."""

    rope_type: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    rope_theta: Positive | msgspec.UnsetType = msgspec.UNSET
    factor: Positive | msgspec.UnsetType = msgspec.UNSET
    original_max_position_embeddings: Size | msgspec.UnsetType = msgspec.UNSET
    low_freq_factor: Positive | msgspec.UnsetType = msgspec.UNSET
    high_freq_factor: Positive | msgspec.UnsetType = msgspec.UNSET
    attention_factor: Positive | msgspec.UnsetType = msgspec.UNSET
    beta_fast: Positive | msgspec.UnsetType = msgspec.UNSET
    beta_slow: Positive | msgspec.UnsetType = msgspec.UNSET
    mscale: Positive | msgspec.UnsetType = msgspec.UNSET
    mscale_all_dim: Positive | msgspec.UnsetType = msgspec.UNSET
    truncate: bool | msgspec.UnsetType = msgspec.UNSET
    short_factor: list[Positive] | msgspec.UnsetType = msgspec.UNSET
    long_factor: list[Positive] | msgspec.UnsetType = msgspec.UNSET


class Common(msgspec.Struct, kw_only=True):
    """The fields that all families have, with transformers' defaults."""

    architectures: list[str] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    hidden_size: Size = 4096
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    hidden_act: str = "silu"
    rms_norm_eps: Positive = 1e-6
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = False
    attention_dropout: float | None = 0.0
    pad_token_id: int | None = None
    head_dim: Size | None = None
    rope_theta: Positive = DEFAULT_THETA
    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None
    original_max_position_embeddings: Size | None = None


class Llama(Common, kw_only=True):
    """Llama and SmolLM."""

    vocab_size: Size = 32000
    intermediate_size: Size = 11008
    num_key_value_heads: Size | None = None
    max_position_embeddings: Size = 2048
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pretraining_tp: int | None = 1
    attention_bias: bool = False
    mlp_bias: bool = False


class Mistral(Common, kw_only=True):
    """Mistral, if all layers have the same attention type."""

    vocab_size: Size = 32000
    intermediate_size: Size = 14336
    num_key_value_heads: Size = 8
    max_position_embeddings: Size = 4096 * 32
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    sliding_window: Window | None = 4096


class Qwen2(Common, kw_only=True):
    """Qwen2."""

    vocab_size: Size = 151936
    intermediate_size: Size = 22016
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32768
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    use_sliding_window: bool = False
    sliding_window: Window | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None


class Qwen3(Qwen2, kw_only=True):
    """Qwen3."""

    head_dim: Size = 128  # in this family, it is not derived from hidden_size
    attention_bias: bool = False


FAMILIES: dict[str, type[Common]] = {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# If one of these fields is present, the configuration is left to transformers.
SPECIAL = {
    *("text_config", "decoder", "generator", "text_encoder", "is_encoder_decoder", "per_layer_config"),
    *("partial_rotary_factor", "mlp_layer_types", "quantization_config", "compression_config", "auto_map"),
}


class NativeConfig:
    """A configuration of a native family; see ``ModelConfig``."""

    model_type: str

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a {self.__dict__.get('model_type')} configuration has no field {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """See ``ModelConfig``."""
        return dict(self.__dict__)

    def get_text_config(self) -> NativeConfig:
        """See ``ModelConfig``."""
        return self


def read_native(stored: Mapping[str, Any]) -> NativeConfig | None:
    """Return the configuration with these fields; None if transformers has to read it."""
    kind = stored.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES or SPECIAL & stored.keys() or not _is_finite(stored):
        return None
    if kind == "mistral" and "layer_types" in stored:
        return None  # transformers reads it as Ministral
    try:
        fields = msgspec.convert(stored, FAMILIES[kind])
    except msgspec.ValidationError:
        return None
    if fields.architectures and fields.architectures[0] != ARCHITECTURES[kind]:
        return None
    return _completed(kind, fields, stored)


def _is_finite(stored: Mapping[str, Any]) -> bool:
    values = [one for value in stored.values() for one in (value if isinstance(value, list) else [value])]
    return all(isfinite(value) for value in values if isinstance(value, float))


def _completed(kind: str, fields: Common, stored: Mapping[str, Any]) -> NativeConfig | None:
    """Add the fields that are derived from others. Returns None if the result is not valid."""
    values = msgspec.structs.asdict(fields)
    name = fields.dtype or fields.torch_dtype
    rope = _rope(fields, values["max_position_embeddings"])
    values |= _head_sizes(kind, fields, values["num_key_value_heads"]) | _windows(fields)
    if rope is None or (name is not None and name not in DTYPES) or not _is_valid(kind, values):
        return None
    for field in REPLACED:
        del values[field]
    values |= {"model_type": kind, "rope_parameters": rope, "dtype": None if name is None else getattr(torch, name)}
    return NativeConfig({name: value for name, value in stored.items() if name not in KNOWN} | values)


def _head_sizes(kind: str, fields: Common, num_kv_heads: int | None) -> dict[str, Any]:
    derived = None if kind == "qwen2" else fields.hidden_size // fields.num_attention_heads
    return {
        "head_dim": fields.head_dim or derived,
        "num_key_value_heads": num_kv_heads or fields.num_attention_heads,
    }


def _windows(fields: Common) -> dict[str, Any]:
    if not isinstance(fields, Qwen2):
        return {}
    window = fields.sliding_window if fields.use_sliding_window else None
    kinds = fields.layer_types
    if kinds is None:
        first = fields.num_hidden_layers if window is None else fields.max_window_layers
        kinds = [LAYER_TYPES[index >= first] for index in range(fields.num_hidden_layers)]
    return {"sliding_window": window, "layer_types": kinds}


def _is_valid(kind: str, values: Mapping[str, Any]) -> bool:
    """Return False if transformers would refuse the configuration."""
    kinds, head_dim = values.get("layer_types"), values["head_dim"] or 0
    if kinds is not None and (not set(kinds) <= set(LAYER_TYPES) or len(kinds) != values["num_hidden_layers"]):
        return False
    if kind == "llama" and values["hidden_size"] % values["num_attention_heads"]:
        return False
    return head_dim <= SMALL_HEAD or head_dim % 2 == 0


def _rope(fields: Common, max_position_embeddings: int) -> dict[str, Any] | None:
    """Return the rotary parameters with their defaults; None if they are incomplete or their type is unknown."""
    rope: dict[str, Any] = msgspec.to_builtins(fields.rope_scaling) or msgspec.to_builtins(fields.rope_parameters) or {}
    rope.setdefault("rope_theta", fields.rope_theta)
    kind = rope.setdefault("rope_type", rope.get("type", "default"))
    if kind not in ROPE_REQUIRED or not ROPE_REQUIRED[kind] <= rope.keys():
        return None
    if kind in WITH_ORIGINAL_LENGTH:
        rope.setdefault("original_max_position_embeddings", max_position_embeddings)
    return None if _may_divide_by_zero(rope) else rope


def _may_divide_by_zero(rope: Mapping[str, Any]) -> bool:
    """Return True if the rotary frequencies might not be finite. rotary_check.py then checks them exactly."""
    base, original = rope["rope_theta"], rope.get("original_max_position_embeddings", 2)
    betas = [rope[name] for name in ("beta_fast", "beta_slow") if name in rope]
    low, high = rope.get("low_freq_factor", 0.0), rope.get("high_freq_factor", float("inf"))
    return bool(base <= 1 or original < 2 or low >= high or any(beta < SMALLEST_BETA for beta in betas))


KNOWN = {field for family in FAMILIES.values() for field in family.__struct_fields__}
