"""The attention function that models of the transformers library call in place of their own.

Every forward pass calls it the same number of times in the same order, and call i uses layer i of the KV pool. Layers
that compute attention twice, or that run twice, therefore need no special handling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface

from ebbtide.errors import StartupError

from ..attention import AttentionBackend, LayerAttention
from ..kv.kv_pool import KVShape

NO_WINDOW = -1.0
# The options of the attention function that ebbtide uses, and those without effect here. Other boolean options only
# request additional outputs and are ignored.
KNOWN_OPTIONS = {
    "scaling",
    "softcap",
    "sliding_window",
    "s_aux",
    "is_causal",
    "dropout",
    "position_ids",
    "cache_position",
}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of a forward pass.

    Attributes:
        index: index of the call in its forward pass.
        q: [T, heads, head_dim].
        k: [T, kv_heads, head_dim].
        v: [T, kv_heads, head_dim of values].
        mask: the mask from ``window_mask``; None if the model created none.
        options: the other keyword arguments.
    """

    index: int
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    options: dict[str, Any]

    @property
    def scale(self) -> float:
        """The factor by which scores are multiplied; transformers' default if the layer passes none."""
        scaling = self.options.get("scaling")
        return float(self.q.shape[-1] ** -0.5 if scaling is None else scaling)

    @property
    def head_dim(self) -> int:
        """The head size in the pool: the larger one of keys and values.

        In DeepSeek's latent attention, the values are narrower than the keys.
        """
        return int(max(self.k.shape[-1], self.v.shape[-1]))

    @property
    def window(self) -> int | None:
        """The sliding window from the layer's mask, or from its options if it has no mask; None for no window.

        Raises StartupError if the mask was not created by ``window_mask``.
        """
        if self.mask is None:
            told = self.options.get("sliding_window")
            return None if told is None else int(told)
        size = float(self.mask.max())
        if size != float(self.mask.min()):
            raise StartupError("it makes its own attention mask")
        return None if size == NO_WINDOW else int(size)


def window_mask(*, batch_size: int, q_length: int, kv_length: int, **options: Any) -> Tensor:
    """The mask function that transformers calls.

    Returns a mask filled with the size of the window, or with NO_WINDOW. ``AttentionCall.window`` reads it from there.
    Raises StartupError if the attention is neither causal nor causal with a sliding window.
    """
    window = options.get("local_size")
    sees = options["mask_function"]
    zero, one = torch.tensor(0), torch.tensor(1)
    if sees(zero, zero, zero, one):
        raise StartupError("its attention is bidirectional")
    if window and window > 1 and not sees(zero, zero, one * window, one * window - 1):
        raise StartupError("its attention is limited to chunks")
    size = (batch_size, 1, q_length, kv_length)
    return torch.full(size, NO_WINDOW if window is None else float(window), device=options["device"])


def plain_forward(model: Any, ids: Tensor, positions: Tensor, **options: Any) -> Tensor:
    """Return the logits, [T, vocab_size], of T tokens in one row, without a cache. A row may be several sequences."""
    inputs = {"input_ids": ids.unsqueeze(0), "position_ids": positions.unsqueeze(0)}
    logits: Tensor = model(**inputs, use_cache=False, **options).logits
    return logits.squeeze(0)


class AttentionPlug:
    """Handles the attention calls of one model. It registers itself with transformers as ``name`` and ``probe_name``.

    transformers creates masks (``window_mask``) only for ``probe_name``.
    """

    def __init__(self) -> None:
        self.name = f"ebbtide_{id(self):x}"  # unique, because the registry keeps this object alive
        self.probe_name = f"{self.name}_probe"
        self._answer: Callable[[AttentionCall], Tensor] | None = None
        self._num_calls = 0
        AttentionInterface.register(self.name, self)
        AttentionInterface.register(self.probe_name, self)
        AttentionMaskInterface.register(self.probe_name, window_mask)

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Compute the attention of a layer in place of transformers. The result is [1, T, heads, head_dim].

        query, key, value: [1, heads, T, head_dim].
        """
        if self._answer is None:
            raise RuntimeError("attention was called outside a forward pass")
        q, k, v = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
        out = self._answer(AttentionCall(self._num_calls, q, k, v, attention_mask, options))
        self._num_calls += 1
        return out.unsqueeze(0), None

    def run(self, forward: Callable[[], Tensor], answer: Callable[[AttentionCall], Tensor]) -> tuple[Tensor, int]:
        """Run ``forward``, with ``answer`` for every attention call. Returns its result and the number of calls."""
        self._answer, self._num_calls = answer, 0
        try:
            return forward(), self._num_calls
        finally:
            self._answer = None


class CallRecorder:
    """Records the attention calls of one forward pass and answers them with zeros.

    The shapes of the pool and the parameters of the layers are derived from the calls.
    """

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def __call__(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return torch.zeros(*call.q.shape[:2], call.v.shape[-1], dtype=call.v.dtype, device=call.v.device)

    def shape(self) -> KVShape:
        """Return a K/V shape that fits every call. Raises StartupError if calls differ in their number of KV heads."""
        if not self.calls:
            raise StartupError("its attention layers do not call the attention function")
        heads = {call.k.shape[1] for call in self.calls}
        if len(heads) != 1 or any(call.v.shape[1] != call.k.shape[1] for call in self.calls):
            raise StartupError("its layers differ in their number of key-value heads")
        return KVShape(len(self.calls), heads.pop(), max(call.head_dim for call in self.calls))

    def layers(self) -> tuple[LayerAttention, ...]:
        """Return the parameters of each call's layer. Raises StartupError for options that ebbtide does not support."""
        shape = self.shape()
        for call in self.calls:
            _check_options(call)
        return tuple(_layer(call, shape) for call in self.calls)


class BackendAnswer:
    """Passes each attention call to the backend, with heads padded to the pool's head size."""

    def __init__(self, backend: AttentionBackend, layers: tuple[LayerAttention, ...], dtype: torch.dtype) -> None:
        self._backend = backend
        self._layers = layers
        self._dtype = dtype

    def __call__(self, call: AttentionCall) -> Tensor:
        layer = self._layers[call.index]
        # Some models rotate in float32, but the pool and its backends have a single element type.
        q, k, v = (_widen(states.to(self._dtype), layer.head_dim) for states in (call.q, call.k, call.v))
        return self._backend.forward(q, k, v, layer)[..., : call.v.shape[-1]].to(call.v.dtype)


def _widen(states: Tensor, head_dim: int) -> Tensor:
    """Pad each head with zeros to ``head_dim``. They do not change a score; the caller removes them from the output."""
    return states.contiguous() if states.shape[-1] == head_dim else pad(states, (0, head_dim - states.shape[-1]))


def _check_options(call: AttentionCall) -> None:
    for name, value in call.options.items():
        if name not in KNOWN_OPTIONS and not isinstance(value, bool | None):
            raise StartupError(f"its attention has the option {name!r}, which ebbtide does not support")
    if call.options.get("is_causal") is False:
        raise StartupError("its attention is bidirectional")


def _layer(call: AttentionCall, shape: KVShape) -> LayerAttention:
    sinks = call.options.get("s_aux")
    return LayerAttention(
        index=call.index,
        num_heads=call.q.shape[1],
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        scale=call.scale,
        softcap=float(call.options.get("softcap") or 0.0),
        window=call.window,
        sinks=None if sinks is None else sinks.detach().reshape(-1),
    )
