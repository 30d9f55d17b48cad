"""The decoder layer of the Llama family, and its attention. Other families add norms around its parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import AttentionBackend, LayerAttention
from ..layers.linear import Linear
from ..layers.ops import LayerOps
from .llama_config import LlamaConfig


@dataclass(slots=True, eq=False)
class Layer:
    """The weights of one decoder layer.

    Attributes:
        q_norm, k_norm: [head_dim]; None except in Qwen3.
    """

    attention: LayerAttention
    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return self.qkv, self.out, self.gate_up, self.down


def empty_layer(
    config: LlamaConfig,
    attention: LayerAttention,
    *,
    dtype: torch.dtype,
    device: torch.device,
    norm_dtype: torch.dtype | None = None,
) -> Layer:
    """Return a layer with uninitialized weights. norm_dtype: the element type of the norms; None for ``dtype``."""

    def linear(out: int, inner: int, *, bias: bool) -> Linear:
        return Linear.empty(out, inner, bias=bias, dtype=dtype, device=device)

    def norm(size: int) -> Tensor:
        return torch.empty(size, dtype=norm_dtype or dtype, device=device)

    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return Layer(
        attention=attention,
        input_norm=norm(config.hidden),
        qkv=linear(q_size + 2 * kv_size, config.hidden, bias=config.qkv_bias),
        q_norm=norm(config.head_dim) if config.qk_norm else None,
        k_norm=norm(config.head_dim) if config.qk_norm else None,
        out=linear(config.hidden, q_size, bias=config.out_bias),
        mlp_norm=norm(config.hidden),
        gate_up=linear(2 * config.intermediate, config.hidden, bias=config.mlp_bias),
        down=linear(config.hidden, config.intermediate, bias=config.mlp_bias),
    )


def attend(
    layer: Layer, x: Tensor, table: tuple[Tensor, Tensor], attention: AttentionBackend, ops: LayerOps, norm_eps: float
) -> Tensor:
    """Return the attention output of x, [T, hidden]. table: the rotary embedding of the tokens' positions."""
    spec = layer.attention
    heads = layer.qkv(x).view(x.shape[0], spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
    q_and_k, v = torch.split(heads, [spec.num_heads + spec.num_kv_heads, spec.num_kv_heads], 1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = torch.split(q_and_k, [spec.num_heads, spec.num_kv_heads], 1)
        q_and_k = torch.cat((ops.norm(q, layer.q_norm, norm_eps), ops.norm(k, layer.k_norm, norm_eps)), 1)
    q, k = torch.split(ops.rotate(q_and_k, table), [spec.num_heads, spec.num_kv_heads], 1)
    return layer.out(attention.forward(q, k, v, spec).flatten(1))


def layer_targets(config: LlamaConfig, layer: Layer) -> dict[str, Tensor]:
    """Return tensor name without the layer's prefix → target; see ``LlamaModel.targets``."""
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    targets = {"input_layernorm.weight": layer.input_norm, "post_attention_layernorm.weight": layer.mlp_norm}
    if layer.q_norm is not None and layer.k_norm is not None:
        targets |= {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
    qkv_names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    targets |= _parts(layer.qkv, qkv_names, [q_size, kv_size, kv_size])
    targets |= _parts(layer.gate_up, ("mlp.gate_proj", "mlp.up_proj"), [config.intermediate, config.intermediate])
    targets |= _parts(layer.out, ("self_attn.o_proj",), [config.hidden])
    return targets | _parts(layer.down, ("mlp.down_proj",), [config.hidden])


def _parts(linear: Linear, names: tuple[str, ...], sizes: list[int]) -> dict[str, Tensor]:
    """Return tensor name → view of a fused layer, for each of its parts. sizes: number of rows of each part."""
    targets = {f"{name}.weight": part for name, part in zip(names, torch.split(linear.weight, sizes), strict=True)}
    if linear.bias is not None:
        targets |= {f"{name}.bias": part for name, part in zip(names, torch.split(linear.bias, sizes), strict=True)}
    return targets
