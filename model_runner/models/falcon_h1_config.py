"""The configuration of Falcon-H1: fields of config.json as typed attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ebbtide.errors import StartupError

from ..attention import LayerAttention
from ..checkpoint.model_config import ModelConfig
from .llama_config import LlamaConfig
from .mamba_mixer import MixerConfig


@dataclass(frozen=True, slots=True)
class FalconH1Config:
    """The configuration of a Falcon-H1 model.

    Attributes:
        sizes: the fields that it shares with the Llama family.
        key_factor: multiplier of the keys. It is applied to the scores, so that the pool stores the keys without it.
        embedding_factor, head_factor, attention_in_factor, attention_out_factor, mixer_out_factor: multipliers of the
            values with these names.
        gate_factor, down_factor: multipliers of the gate and of the output of the MLP.
    """

    sizes: LlamaConfig
    mixer: MixerConfig
    key_factor: float
    embedding_factor: float
    head_factor: float
    attention_in_factor: float
    attention_out_factor: float
    mixer_out_factor: float
    gate_factor: float
    down_factor: float

    @classmethod
    def read(cls, config: ModelConfig) -> FalconH1Config:
        """Convert a configuration. Raises StartupError if it is not supported."""
        for name, length in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
            if len(getattr(config, name)) != length:
                raise StartupError(f"The field {name} of a falcon_h1 model must be a list of {length} numbers.")
        if tuple(config.time_step_limit or (0.0, inf)) != (0.0, inf):
            raise StartupError(
                f"The field time_step_limit of a falcon_h1 model is {config.time_step_limit}, which is not supported."
            )
        sizes = LlamaConfig.read(config)
        bias = bool(config.attention_bias)
        gate, down = config.mlp_multipliers
        return cls(
            sizes=replace(sizes, qkv_bias=bias, out_bias=bias, mlp_bias=bool(config.mlp_bias)),
            mixer=_mixer(config),
            key_factor=config.key_multiplier,
            embedding_factor=config.embedding_multiplier,
            head_factor=config.lm_head_multiplier,
            attention_in_factor=config.attention_in_multiplier,
            attention_out_factor=config.attention_out_multiplier,
            mixer_out_factor=config.ssm_out_multiplier,
            gate_factor=gate,
            down_factor=down,
        )

    def layer_attention(self, index: int) -> LayerAttention:
        """Return the attention parameters of a layer."""
        attention = self.sizes.layer_attention(index)
        return replace(attention, scale=attention.scale * self.key_factor)


def _mixer(config: ModelConfig) -> MixerConfig:
    inner = config.mamba_expand * config.hidden_size if config.mamba_d_ssm is None else config.mamba_d_ssm
    if config.mamba_n_heads % config.mamba_n_groups or inner % config.mamba_n_groups or config.mamba_d_conv < 2:
        raise StartupError(
            f"A falcon_h1 model with {config.mamba_n_heads} heads (mamba_n_heads), {config.mamba_n_groups} groups "
            f"(mamba_n_groups) and a convolution over {config.mamba_d_conv} tokens (mamba_d_conv) is not supported: "
            "the groups must divide the heads, and the convolution must read two tokens or more."
        )
    return MixerConfig(
        hidden=config.hidden_size,
        inner=inner,
        num_heads=config.mamba_n_heads,
        head_dim=config.mamba_d_head,
        num_groups=config.mamba_n_groups,
        state=config.mamba_d_state,
        num_taps=config.mamba_d_conv,
        conv_bias=bool(config.mamba_conv_bias),
        in_bias=bool(config.mamba_proj_bias),
        out_bias=bool(config.projectors_bias),
        in_factor=config.ssm_in_multiplier,
        part_factors=tuple(config.ssm_multipliers),
        has_norm=bool(config.mamba_rms_norm),
        norm_before_gate=bool(config.mamba_norm_before_gate),
        norm_eps=config.rms_norm_eps,
    )
