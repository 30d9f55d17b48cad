"""The Llama family on the CPU in bfloat16: one call of compiled code per step, from the embedding to the final norm.

The result of a row depends on its own tokens only, bit for bit. Other rows, prefill chunks, pages and cache hits do not
change it. The compiled code is in kernels/llama_forward.cpp.
"""

from __future__ import annotations

import ctypes
import time
import weakref

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.weights import Checkpoint
from ..kernels.llama_forward import Batch, LayerWeights, LinearWeights, ModelWeights, load_kernels
from ..kernels.native_build import VECTORS
from ..kv.kv_pool import KVShape
from ..layers.linear import Linear
from ..thread_counts import ThreadCounts
from . import llama
from .llama_config import LlamaConfig
from .model import Model

BLOCK = 16  # number of outputs that are stored together in a packed weight
UNIT = 64  # number of outputs that one thread computes at a time
INNER = 32  # the width of a weight, in inputs, is padded to a multiple of this number


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
    """Read the weights. Models whose head size is not a multiple of 16 run through torch.

    Raises StartupError if the configuration needs a feature that is not implemented.
    """
    if LlamaConfig.read(checkpoint.config).head_dim % BLOCK:
        return llama.load(checkpoint, dtype=dtype, device=device)
    return NativeLlama(llama.read(checkpoint, dtype=dtype, device=device))


class NativeLlama:
    """A model of the Llama family whose weights are packed for the compiled code.

    The constructor removes the weights from ``model``.
    """

    def __init__(self, model: llama.LlamaModel, vectors: tuple[str, ...] = VECTORS) -> None:
        config = model.config
        self._config = config
        self._rotary = model.rotary.in_dtype(torch.float32)
        self._library = load_kernels(vectors)
        self._activation = torch.bfloat16 if self._library.activation_bytes() == 2 else torch.float32
        self._tensors: list[Tensor] = []  # keeps alive the memory that the structures point to
        self._layers = (LayerWeights * config.num_layers)(
            *(self._packed_layer(layer, config.windows[index]) for index, layer in enumerate(model.layers))
        )
        embedding = None if config.tied else self._packed(model.embedding)
        head = self._packed_linear(model.head)
        self._weights = ModelWeights(
            config.num_layers,
            config.hidden,
            config.intermediate,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            torch.get_num_threads(),
            config.norm_eps,
            config.head_dim**-0.5,
            head.weight if embedding is None else embedding.data_ptr(),
            head.k,
            self._pointer(model.norm.float()),
            self._layers,
            head,
        )
        self._handle = self._library.create(ctypes.byref(self._weights))
        weakref.finalize(self, self._library.destroy, self._handle)
        self._threads: ThreadCounts | None = None

    def adapt_threads(self) -> None:
        """Let each step use the number of threads, up to torch's, with which earlier steps were the fastest."""
        self._threads = ThreadCounts(torch.get_num_threads())

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return KVShape(self._config.num_layers, self._config.num_kv_heads, self._config.head_dim)

    @property
    def vocab_size(self) -> int:
        """See ``Model``."""
        return self._config.vocab_size

    @property
    def weight_bytes(self) -> int:
        """See ``Model``."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``; returns normalized states, [W, hidden padded with zeros]. Attends by itself."""
        pool = attention.pool
        cos, sin = self._rotary.table(batch.positions)
        num_wanted = batch.wanted.shape[0]
        states = torch.zeros(num_wanted, self._weights.head.k, dtype=self._activation)
        tensors = (batch.token_ids, batch.positions, batch.slots, batch.wanted, batch.item_rows, batch.cu_query_lens)
        arguments = Batch(
            batch.num_tokens,
            len(batch.query_lens),
            num_wanted,
            *(tensor.data_ptr() for tensor in (*tensors, batch.page_table)),
            batch.page_table.stride(0),
            pool.page_size,
            cos.data_ptr(),
            sin.data_ptr(),
            pool.data.data_ptr(),
            pool.data.stride(1),
        )
        if self._threads is None:
            self._library.forward(self._handle, ctypes.byref(arguments), states.data_ptr())
            return states
        self._library.use_threads(self._handle, self._threads.choose(batch.num_tokens))
        started = time.perf_counter()
        self._library.forward(self._handle, ctypes.byref(arguments), states.data_ptr())
        self._threads.record(batch.num_tokens, time.perf_counter() - started)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """See ``Model``; float32."""
        states = states.contiguous()
        out = torch.empty(states.shape[0], self._config.vocab_size)
        self._library.logits(self._handle, states.data_ptr(), states.shape[0], out.data_ptr())
        return out

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states[:, : self._config.hidden]

    def _packed_layer(self, layer: llama.Layer, window: int | None) -> LayerWeights:
        return LayerWeights(
            self._pointer(layer.input_norm.float()),
            None if layer.q_norm is None else self._pointer(layer.q_norm.float()),
            None if layer.k_norm is None else self._pointer(layer.k_norm.float()),
            self._pointer(layer.mlp_norm.float()),
            self._packed_linear(layer.qkv),
            self._packed_linear(layer.out),
            self._packed_linear(_interleaved(layer.gate_up)),
            self._packed_linear(layer.down),
            window or 0,
        )

    def _packed_linear(self, linear: Linear) -> LinearWeights:
        packed = self._packed(linear.weight)
        bias = None if linear.bias is None else self._pointer(linear.bias.float())
        num_outputs = linear.out_features
        linear.release()
        return LinearWeights(packed.data_ptr(), bias, num_outputs, packed.shape[1] * 2)

    def _packed(self, weight: Tensor) -> Tensor:
        """[N, K] → [N / 16, K / 2, 16, 2], both padded with zeros."""
        num_outputs, inner = weight.shape
        padding = (0, -inner % INNER, 0, -num_outputs % UNIT)
        padded = functional.pad(weight, padding) if any(padding) else weight
        packed = padded.view(-1, BLOCK, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()
        self._tensors.append(packed)
        return packed

    def _pointer(self, tensor: Tensor) -> int:
        self._tensors.append(tensor)
        return tensor.data_ptr()


def _interleaved(gate_up: Linear) -> Linear:
    """Return the layer with its outputs in blocks of 16 that alternate between gate and up."""
    weight = _interleaved_rows(gate_up.weight)
    bias = None if gate_up.bias is None else _interleaved_rows(gate_up.bias)
    gate_up.release()
    return Linear(weight, bias)


def _interleaved_rows(rows: Tensor) -> Tensor:
    """[2 * n, …] → [2 * n, padded to blocks, …]."""
    gate, up = rows.view(2, -1, *rows.shape[1:])
    blocks = [part for pair in zip(gate.split(BLOCK), up.split(BLOCK), strict=True) for part in pair]
    return torch.cat([_block(part) for part in blocks])


def _block(rows: Tensor) -> Tensor:
    missing = BLOCK - rows.shape[0]
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows
