"""The Llama family on the CPU: one call of compiled code per step, from the embedding to the final norm.

Weights are in bfloat16 or quantized. The inputs of linear layers are in bfloat16, or in float32 if the CPU does not
multiply bfloat16. On CPUs without AMX, the inputs of quantized layers are quantized to bytes.

The result of a row depends only on the tokens of its request. Other rows in the batch, the division into prefill
chunks, the choice of pages and cache hits do not change a single bit. kernels/llama_forward.cpp contains the compiled
code.
"""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import AttentionBackend
from ..batch import ForwardBatch, PoolPlaces
from ..checkpoint.quantized_rows import QuantizedRows, parts, quantized
from ..checkpoint.weights import Checkpoint
from ..cpu_threads import one_thread
from ..kernels.llama_forward import Batch, LayerWeights, LinearWeights, ModelWeights, Pool, load_kernels
from ..kernels.native_build import VECTORS
from ..kernels.packed_weights import BLOCK, PackedWeight, block_table, pack_bfloat16, pack_quants
from ..kv.kv_pool import KVPool, KVShape
from ..layers.rotary import Rotary
from ..thread_counts import ThreadCounts
from . import llama
from .llama_config import LlamaConfig
from .model import Model, Quantization, refuse_int8
from .stored_targets import EMBEDDING, HEAD

log = logging.getLogger(__name__)

Stored = Tensor | QuantizedRows
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, quantization: Quantization) -> Model:
    """Load a model. A model whose head size is not a multiple of 16 runs through torch instead.

    Raises StartupError if the configuration needs a feature that is not implemented.
    """
    if LlamaConfig.read(checkpoint.config).head_dim % BLOCK:
        refuse_int8(quantization, checkpoint.files.name)
        return llama.load(checkpoint, dtype=dtype, device=device)
    config, rotary, names = llama.planned(checkpoint, dtype=dtype, device=device)
    stored = checkpoint.tensors(names) if quantization == "none" else checkpoint.stored_weights(names)
    wanted = set(names)
    weights = ((name, weight) for name, weight in stored if name in wanted)
    model = NativeLlama(config, rotary, weights, quantization=quantization)
    log.info("The weights take %s", model.weights_text())
    return model


class NativeLlama:
    """A model of the Llama family whose weights are packed for the compiled code."""

    state_shape = None  # no recurrent layers

    def __init__(
        self,
        config: LlamaConfig,
        rotary: Rotary,
        weights: Iterable[tuple[str, Stored]],
        *,
        quantization: Quantization = "auto",
        vectors: tuple[str, ...] = VECTORS,
    ) -> None:
        """weights: (Hugging Face name, values) of the tensors. Each is packed before the next one is read."""
        self._config = config
        self._rotary = rotary.in_dtype(torch.float32)
        self._library = load_kernels(vectors)
        self.activation = torch.bfloat16 if self._library.activation_bytes() == 2 else torch.float32
        self._vectors: dict[str, Tensor] = {}
        self._packed: dict[str, PackedWeight] = {}
        with one_thread():
            for name, weight in weights:
                if isinstance(weight, Tensor) and weight.dim() == 1:
                    self._vectors[name] = weight.float()
                else:
                    self._packed[name] = _packed(weight, quantization)
        self._tensors: list[Tensor] = []  # keeps alive the memory to which the structures point
        self._layers = (LayerWeights * config.num_layers)(*map(self._layer, range(config.num_layers)))
        # A checkpoint may store tied weights under either of their names.
        embedding = EMBEDDING if EMBEDDING in self._packed else HEAD
        head = self._linear([embedding if config.tied else HEAD])
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
            head.blocks if config.tied else self._linear([embedding]).blocks,
            self._vectors["model.norm.weight"].data_ptr(),
            self._layers,
            head,
        )
        self._handle = self._library.create(ctypes.byref(self._weights))
        weakref.finalize(self, self._library.destroy, self._handle)
        self._threads: ThreadCounts | None = None

    @property
    def is_deterministic(self) -> bool:
        """See ``Model``. The computation of a row reads no other row, and every sum has a fixed order."""
        return True

    @property
    def is_capturable(self) -> bool:
        """See ``Model``. The compiled code runs on the CPU."""
        return False

    def adapt_threads(self) -> None:
        """See ``Model``. Each step uses the number of threads with which earlier steps of similar size were fastest."""
        self._threads = ThreadCounts(torch.get_num_threads())

    @classmethod
    def of(
        cls, model: llama.LlamaModel, *, quantization: Quantization = "auto", vectors: tuple[str, ...] = VECTORS
    ) -> NativeLlama:
        """Return a native model that packs the weights of ``model``. Those weights must not be packed already."""
        weights = model.targets().items()
        return cls(model.config, model.rotary, weights, quantization=quantization, vectors=vectors)

    @property
    def kv_shape(self) -> KVShape:
        """See ``Model``."""
        return self._config.kv_shape

    @property
    def windows(self) -> tuple[int | None, ...]:
        """See ``Model``."""
        return self._config.windows

    @property
    def vocab_size(self) -> int:
        """See ``Model``."""
        return self._config.vocab_size

    @property
    def weight_bytes(self) -> int:
        """See ``Model``."""
        packed = sum(weight.data.nbytes for weight in self._packed.values())
        return packed + sum(vector.nbytes for vector in self._vectors.values())

    @property
    def num_weights(self) -> int:
        """The number of weights."""
        packed = sum(weight.num_outputs * weight.inner for weight in self._packed.values())
        return packed + sum(vector.numel() for vector in self._vectors.values())

    def weights_text(self) -> str:
        """Return a description of the size and formats of the weights, for the log."""
        kinds = ", ".join(sorted({weight.kind for weight in self._packed.values()}))
        bits = self.weight_bytes * 8 / self.num_weights
        return f"{self.weight_bytes / 2**20:.0f} MiB, {bits:.2f} bits each ({kinds})"

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``. The states are the hidden states after the final norm, padded with zeros to a multiple of 32.

        Attention is part of the compiled code; ``attention`` provides only the pools.
        """
        pools = attention.pools
        cos, sin = self._rotary.table(batch.positions)
        num_wanted = batch.wanted.shape[0]
        states = torch.zeros(num_wanted, self._weights.head.k, dtype=self.activation)
        tensors = (batch.token_ids, batch.positions, batch.wanted, batch.item_rows, batch.cu_query_lens)
        places = _layer_places(pools)
        arguments = Batch(
            batch.num_tokens,
            len(batch.query_lens),
            num_wanted,
            *(tensor.data_ptr() for tensor in tensors),
            pools[0].page_size,
            pools[0].dtype == torch.int8,
            cos.data_ptr(),
            sin.data_ptr(),
            _pool_structures(batch, pools),
            places.data_ptr(),
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
        """See ``Model``. The logits are in float32."""
        states = states.contiguous()
        out = torch.empty(states.shape[0], self._config.vocab_size)
        self._library.logits(self._handle, states.data_ptr(), states.shape[0], out.data_ptr())
        return out

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states[:, : self._config.hidden]

    def _layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        gate_up = self._linear([f"{prefix}{name}.weight" for name in GATE_UP], alternating=True)
        return LayerWeights(
            *(
                self._pointer(f"{prefix}{name}.weight")
                for name in ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm")
            ),
            self._linear([f"{prefix}{name}.weight" for name in QKV]),
            self._linear([f"{prefix}self_attn.o_proj.weight"]),
            gate_up,
            self._linear([f"{prefix}mlp.down_proj.weight"]),
            self._config.windows[index] or 0,
        )

    def _pointer(self, name: str) -> int | None:
        return self._vectors[name].data_ptr() if name in self._vectors else None

    def _linear(self, names: list[str], *, alternating: bool = False) -> LinearWeights:
        """Join several weights into one layer.

        alternating: True to alternate their blocks of 16 outputs, False to append each weight to the previous one.
        """
        weights = [self._packed[name] for name in names]
        table = block_table(weights, alternating=alternating)
        self._tensors.append(table)
        num_outputs = sum(-(-weight.num_outputs // BLOCK) * BLOCK for weight in weights)
        if len(weights) == 1:
            num_outputs = weights[0].num_outputs
        biases = [self._vectors.get(name.removesuffix("weight") + "bias") for name in names]
        return LinearWeights(table.data_ptr(), self._bias(biases, alternating), num_outputs, weights[0].inner)

    def _bias(self, biases: list[Tensor | None], alternating: bool) -> int | None:
        found = [functional.pad(bias, (0, -len(bias) % BLOCK)).view(-1, BLOCK) for bias in biases if bias is not None]
        if not found:
            return None
        bias = torch.stack(found, 1) if alternating else torch.cat(found)
        self._tensors.append(bias)
        return bias.data_ptr()


def _layer_places(pools: Sequence[KVPool]) -> Tensor:
    """Return the pool of each layer, and its index in the pool, int64 [layers, 2]."""
    places = sorted(
        (layer, number, index) for number, pool in enumerate(pools) for layer, index in pool.index_of.items()
    )
    return torch.tensor([(number, index) for _, number, index in places])


def _pool_structures(batch: ForwardBatch, pools: Sequence[KVPool]) -> ctypes.Array[Pool]:
    places = [PoolPlaces(batch.slots, batch.page_table), *batch.more_pools]
    return (Pool * len(pools))(
        *(
            Pool(
                pool.data.data_ptr(),
                pool.data.stride(1) * pool.data.itemsize,
                place.slots.data_ptr(),
                place.page_table.data_ptr(),
                place.page_table.stride(0),
            )
            for pool, place in zip(pools, places, strict=True)
        )
    )


def _packed(weight: Stored, quantization: Quantization) -> PackedWeight:
    if isinstance(weight, QuantizedRows):
        return pack_quants(parts(weight))
    return pack_quants(quantized(weight)) if quantization == "int8" else pack_bfloat16(weight)
