"""The configuration of the Llama family and of Gemma's layers: fields of config.json as typed attributes."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.errors import StartupError

from ..attention import LayerAttention
from ..checkpoint.model_config import ModelConfig
from ..kv.kv_pool import KVShape

# Qwen2 always has biases on queries, keys and values; Mistral has none.
BIAS_BY_FIELD = {"llama", "qwen3", "gemma2", "gemma3_text"}
QK_NORM = {"qwen3", "gemma3_text"}
# Model type → the field of the activation and its supported value.
ACTIVATIONS = dict.fromkeys(("gemma2", "gemma3_text"), ("hidden_activation", "gelu_pytorch_tanh"))
SILU = ("hidden_act", "silu")


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes and options of a Llama-family model.

    Attributes:
        tied: True if the output layer shares the weight of the embedding.
        qk_norm: True if the queries and keys of each head are normalized.
        windows: the sliding window of each layer, in tokens; None for full attention.
    """

    vocab_size: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]

    @classmethod
    def read(cls, config: ModelConfig) -> LlamaConfig:
        """Convert a configuration. Raises StartupError if its activation or number of heads is not supported."""
        fields = config.to_dict()
        activation, supported = ACTIVATIONS.get(config.model_type, SILU)
        if fields[activation] != supported:
            raise StartupError(
                f"The activation {fields[activation]!r} is not supported for {config.model_type} models."
            )
        num_heads = config.num_attention_heads
        num_kv_heads = fields.get("num_key_value_heads") or num_heads
        if num_heads % num_kv_heads:
            raise StartupError(
                f"The configuration of a {config.model_type} model has {num_heads} attention heads "
                f"(num_attention_heads), which is not a multiple of its {num_kv_heads} key-value heads "
                "(num_key_value_heads)."
            )
        has_bias = config.model_type in BIAS_BY_FIELD and bool(fields.get("attention_bias"))
        return cls(
            vocab_size=config.vocab_size,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=fields.get("head_dim") or config.hidden_size // num_heads,
            norm_eps=config.rms_norm_eps,
            tied=config.tie_word_embeddings,
            qkv_bias=has_bias or config.model_type == "qwen2",
            out_bias=has_bias,
            mlp_bias=config.model_type == "llama" and bool(fields.get("mlp_bias")),
            qk_norm=config.model_type in QK_NORM,
            windows=_windows(config.model_type, fields),
        )

    @property
    def kv_shape(self) -> KVShape:
        """The shape of one token's K/V."""
        return KVShape(self.num_layers, self.num_kv_heads, self.head_dim)

    def layer_attention(self, index: int) -> LayerAttention:
        """Return the attention parameters of a layer."""
        scale = self.head_dim**-0.5
        return LayerAttention(
            index, self.num_heads, self.num_kv_heads, self.head_dim, scale, window=self.windows[index]
        )


def _windows(model_type: str, fields: dict[str, object]) -> tuple[int | None, ...]:
    """Return the sliding window of each layer.

    Llama has no windows, even if its configuration has a field for them. Qwen and Gemma list the layers that have a
    window; in Mistral, all layers have it.
    """
    window = fields.get("sliding_window")
    num_layers = fields["num_hidden_layers"]
    assert isinstance(num_layers, int)
    if model_type == "llama" or not isinstance(window, int):
        return (None,) * num_layers
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list):
        return (window,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
