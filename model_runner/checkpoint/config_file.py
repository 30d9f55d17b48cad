"""Converts config.json to a transformers configuration. For most native models, ``native_config`` is used instead.

The module accepts different JSON types with the same meaning. It does not depend on a model family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import one_line, read_json_object

from .model_config import ROPE_NUMBERS

# Fields for classifiers or for the output format of transformers' models. The logits of a language model do not depend
# on them.
IRRELEVANT = {
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
}
SIZES = {
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    "max_position_embeddings",
    "conv_L_cache",
    "block_multiple_of",
}
WINDOW = "sliding_window"
EPSILONS = {"rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon"}
# Further numbers by which transformers divides, which it raises to a negative power, or which yield a size.
DIVISORS = {
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "query_pre_attn_scalar",
    "logits_scaling",
    "rope_local_base_freq",
    "rotary_emb_base",
    "rotary_pct",
    "partial_rotary_factor",
    "block_ffn_dim_multiplier",
}
SIMPLE_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "None": NoneType}
MAY_BE_INFINITE = {"initializer_range", "time_step_limit"}  # used in training only; checked by its model
MAX_SIZE = 2**31 - 1
DTYPE_FIELDS = ("dtype", "torch_dtype")
DTYPE_NAMES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}
ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta")
ROPE_LISTS = {"short_factor", "long_factor"}
ROPE_TYPES = {"rope_type", "type"}
ZERO_MEANS_NONE = {"mscale", "mscale_all_dim"}


def read_config(path: Path) -> PretrainedConfig:
    """Return the configuration in a file. Raises a StartupError that names the file if the configuration is invalid."""
    stored = read_json_object(path)
    config_class = _config_class(stored, path)
    try:
        return config_class.from_dict(_normalized(stored, config_class, path), name_or_path=str(path.parent))
    except StartupError:
        raise
    except Exception as error:  # the library does not check the values, so any exception means that the file is invalid
        raise StartupError(f"The file {path} is not a usable configuration: {_reason(error)}.") from error


def _config_class(stored: Mapping[str, Any], path: Path) -> Any:
    kind = stored.get("model_type")
    if not isinstance(kind, str):
        raise StartupError(f"The file {path} has no model_type, so the model's architecture is unknown.")
    if kind == "mistral" and "layer_types" in stored:
        kind = "ministral"  # as in transformers' AutoConfig, because MistralConfig ignores layer_types
    if kind in CONFIG_MAPPING:
        return CONFIG_MAPPING[kind]
    if "auto_map" in stored:
        raise StartupError(
            f"The model in {path.parent} needs code from the checkpoint, which ebbtide does not execute."
        )
    raise StartupError(f"The model_type {kind!r} in {path} is unknown to the installed transformers library.")


def _normalized(stored: Mapping[str, Any], config_class: Any, path: Path) -> dict[str, Any]:
    """Return the stored fields, converted to the types that the class expects.

    A null field whose type does not include None is omitted, so that the default of the class applies.
    """
    kinds = {field.name: field.type for field in dataclasses.fields(config_class)}
    names: dict[str, str] = config_class.attribute_map
    sizes = SIZES | {names.get(name, name) for name in SIZES}
    fields: dict[str, Any] = {}
    _check_type("quantization_config", stored.get("quantization_config"), dict | None, "an object", path)
    for name, value in stored.items():
        if name in IRRELEVANT or (name in DTYPE_FIELDS and value in (None, "auto")):
            continue
        if name in DTYPE_FIELDS:
            value = _dtype_name(name, value, path)
        kind = kinds.get(names.get(name, name))
        if value is None and kind is not None and NoneType not in _plain_types(kind):
            continue
        if name == "architectures":
            value = _architectures(value, path)
        value = _converted(value, kind, config_class.sub_configs.get(name), path)
        if name in sizes:
            _check_size(name, value, path)
        elif names.get(name, name) in EPSILONS | DIVISORS and type(value) in (int, float):
            _check_number(name, value, path)
        _check_finite(name, value, path)
        fields[name] = _checked_rope(name, value, path) if name in ROPE_FIELDS else value
    return fields


def _converted(value: Any, kind: Any, sub_class: Any, path: Path) -> Any:
    """Convert the value to the annotated type if no information is lost; return other values unchanged.

    Examples: 2.0 to int, 2 to float, 0 to bool, "x" to a list.
    """
    types = _plain_types(kind)
    if isinstance(value, dict):
        return _converted_dict(value, sub_class, path)
    if isinstance(value, list):
        entry = next((get_args(one)[0] for one in (kind, *get_args(kind)) if get_origin(one) is list), None)
        return [_converted(one, entry, None, path) for one in value]
    if isinstance(value, float) and value.is_integer() and int in types and float not in types:
        return int(value)
    if type(value) is int and int not in types:
        return float(value) if float in types else bool(value) if bool in types and value in (0, 1) else value
    if isinstance(value, str) and list in types and str not in types:
        return [value]
    return value


def _converted_dict(value: dict[str, Any], sub_class: Any, path: Path) -> Any:
    if value.keys() == {"__float__"}:
        return float(value["__float__"])  # the form in which transformers writes an infinite number
    if sub_class is None:
        return value
    if not issubclass(sub_class, PretrainedConfig):
        sub_class = CONFIG_MAPPING.get(value.get("model_type"))
    return value if sub_class is None else _normalized(value, sub_class, path)


def _plain_types(kind: Any) -> set[Any]:
    """Return the types that an annotation accepts, without their parameters."""
    if isinstance(kind, str):  # the annotations of the base class are strings
        return {SIMPLE_TYPES.get(part.strip(), object) for part in kind.split("|")}
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return {plain for part in get_args(kind) for plain in _plain_types(part)}
    if origin is Annotated:
        return _plain_types(get_args(kind)[0])
    if origin is Literal:
        return {type(value) for value in get_args(kind)}
    return {NoneType if kind is None else origin or kind}


def _dtype_name(field: str, value: object, path: Path) -> str:
    name = str(value).removeprefix("torch.")
    name = DTYPE_NAMES.get(name, name)
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise StartupError(f"The field {field} in {path} is {value!r}, which is not an element type.")
    return name


def _architectures(value: object, path: Path) -> list[str]:
    names = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StartupError(f"The field architectures in {path} must be a list of class names, not {value!r:.80}.")
    return names


def _check_size(name: str, value: object, path: Path) -> None:
    if type(value) in (int, float, str, bool, dict) and not (type(value) is int and 1 <= value <= MAX_SIZE):
        raise StartupError(f"The field {name} in {path} is {str(value)[:50]!r}, which is not a positive whole number.")


def _checked_rope(name: str, rope: Any, path: Path) -> Any:
    """Return the rotary parameters (per layer type, if the file has several) without null values.

    Raises StartupError if a number is invalid.
    """
    if name == "rope_theta" and rope is not None:
        _check_number(name, rope, path)
    if not isinstance(rope, dict):
        return rope
    checked = {key: value for key, value in rope.items() if value is not None}
    _check_types_and_lists(name, checked, path)
    for key, value in checked.items():
        if key in ROPE_NUMBERS:
            _check_number(f"{name}.{key}", value, path, or_zero=key in ZERO_MEANS_NONE)
            if isinstance(value, float) and key == "original_max_position_embeddings" and value.is_integer():
                checked[key] = int(value)
        elif isinstance(value, dict):
            checked[key] = _checked_rope(f"{name}.{key}", value, path)
    return checked


def _check_types_and_lists(name: str, rope: Mapping[str, Any], path: Path) -> None:
    for key in ROPE_TYPES & rope.keys():
        _check_type(f"{name}.{key}", rope[key], str, "a text", path)
    for key in ROPE_LISTS & rope.keys():
        _check_numbers(f"{name}.{key}", rope[key], path)


def _check_type(name: str, value: object, kind: Any, kind_name: str, path: Path) -> None:
    if not isinstance(value, kind):
        raise StartupError(f"The field {name} in {path} must be {kind_name}, not {value!r:.80}.")


def _check_number(name: str, value: object, path: Path, *, or_zero: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not is_number or not (value > 0 or (or_zero and value == 0)):  # type: ignore[operator]  # a number
        raise StartupError(f"The field {name} in {path} is {str(value)[:50]!r}, which is not a positive number.")


def _check_numbers(name: str, values: object, path: Path) -> None:
    for value in values if isinstance(values, list) else [values]:
        _check_number(name, value, path)


def _check_finite(name: str, value: object, path: Path) -> None:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not isfinite(number) and name not in MAY_BE_INFINITE:
            raise StartupError(f"The field {name} in {path} is {str(number)!r}, which is not a finite number.")
    if name == WINDOW and type(value) is int and value < 0:
        raise StartupError(f"The field {name} in {path} is '{value}', which is negative.")


def _reason(error: Exception) -> str:
    if isinstance(error, StrictDataclassError):
        return " ".join(str(error).split())[:300].rstrip(".")
    return one_line(error)
