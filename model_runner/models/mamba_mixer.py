"""The Mamba-2 mixer: a projection, a short convolution, a state space recurrence and a gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..batch import ForwardBatch
from ..layers.linear import Linear
from ..layers.short_conv import ConvIndex, causal_conv
from ..layers.ssd import SsdInputs, ssd, step_sizes


@dataclass(frozen=True, slots=True)
class MixerConfig:
    """The sizes and options of a mixer.

    Attributes:
        inner: number of channels of the recurrence, ``num_heads * head_dim``.
        num_taps: number of tokens that the convolution reads, including the present one.
        in_factor: multiplier of the input.
        part_factors: multipliers of the parts of the projection: gate, x, B, C and step sizes.
        has_norm: True if the gated output is normalized, in ``num_groups`` parts.
        norm_before_gate: True if the norm is applied before the gate, False if after it.
    """

    hidden: int
    inner: int
    num_heads: int
    head_dim: int
    num_groups: int
    state: int
    num_taps: int
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    in_factor: float
    part_factors: tuple[float, ...]
    has_norm: bool
    norm_before_gate: bool
    norm_eps: float

    @property
    def conv_channels(self) -> int:
        """Number of channels of the convolution: x, B and C."""
        return self.inner + 2 * self.num_groups * self.state

    @property
    def conv_state(self) -> int:
        """Number of elements of the convolution's state."""
        return (self.num_taps - 1) * self.conv_channels

    @property
    def state_size(self) -> int:
        """Number of elements of one layer's state."""
        return self.conv_state + self.inner * self.state

    @property
    def parts(self) -> tuple[int, ...]:
        """The sizes of the parts of the projection, in the order of ``part_factors``."""
        grouped = self.num_groups * self.state
        return self.inner, self.inner, grouped, grouped, self.num_heads


class MambaMixer:
    """The weights of one mixer. Convolution and recurrence are computed in float32."""

    def __init__(self, config: MixerConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        total = sum(config.parts)
        self.in_proj = Linear.empty(total, config.hidden, bias=config.in_bias, dtype=dtype, device=device)
        self.out_proj = Linear.empty(config.hidden, config.inner, bias=config.out_bias, dtype=dtype, device=device)
        self.conv = torch.empty(config.conv_channels, config.num_taps, device=device)
        self.conv_bias = torch.empty(config.conv_channels, device=device) if config.conv_bias else None
        self.a_log, self.d, self.dt_bias = torch.empty(3, config.num_heads, device=device).unbind()
        self.norm = torch.empty(config.inner, device=device) if config.has_norm else None
        parts = zip(config.parts, config.part_factors, strict=True)
        self._factors = torch.cat([torch.full((size,), factor, device=device) for size, factor in parts])

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return self.in_proj, self.out_proj

    def targets(self) -> dict[str, Tensor]:
        """Return tensor name → target."""
        optional = {
            "in_proj.bias": self.in_proj.bias,
            "out_proj.bias": self.out_proj.bias,
            "conv1d.bias": self.conv_bias,
            "norm.weight": self.norm,
        }
        return {
            "in_proj.weight": self.in_proj.weight,
            "out_proj.weight": self.out_proj.weight,
            "conv1d.weight": self.conv.unsqueeze(1),
            "A_log": self.a_log,
            "D": self.d,
            "dt_bias": self.dt_bias,
        } | {name: target for name, target in optional.items() if target is not None}

    def forward(self, x: Tensor, batch: ForwardBatch, index: ConvIndex) -> Tensor:
        """Return the output of x, [T, hidden], and advance the states of the batch."""
        config = self.config
        assert batch.states is not None
        before = batch.states.before()  # [N, state_size]
        conv_before, ssm_before = torch.split(before, [config.conv_state, config.inner * config.state], 1)
        projected = self.in_proj(x * config.in_factor).float() * self._factors
        gate, mixed, dt = torch.split(projected, [config.inner, config.conv_channels, config.num_heads], 1)
        conv_before = conv_before.reshape(len(before), config.num_taps - 1, config.conv_channels)
        convolved, conv_after = causal_conv(mixed, conv_before, self.conv, self.conv_bias, index)
        inner, b, c = torch.split(functional.silu(convolved), list(config.parts[1:4]), 1)
        heads = inner.reshape(len(x), config.num_heads, config.head_dim)
        groups = (len(x), config.num_groups, config.state)
        inputs = SsdInputs(heads, step_sizes(dt, self.dt_bias), b.reshape(groups), c.reshape(groups))
        ssm_before = ssm_before.reshape(len(before), config.num_heads, config.head_dim, config.state)
        y, ssm_after = ssd(inputs, -torch.exp(self.a_log), ssm_before, batch)
        batch.states.advance(torch.cat((conv_after.flatten(1), ssm_after.flatten(1)), 1))
        y = (y + heads * self.d[:, None]).flatten(1)
        return self.out_proj(self._gated(y, functional.silu(gate)).to(x.dtype))

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Apply the gate and, if the mixer has one, the norm over each group of channels."""
        config = self.config
        if self.norm is None:
            return y * gate
        y = y if config.norm_before_gate else y * gate
        grouped = y.reshape(len(y), config.num_groups, -1)
        grouped = grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + config.norm_eps)
        normed = grouped.flatten(1) * self.norm
        return normed * gate if config.norm_before_gate else normed
