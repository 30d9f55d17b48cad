"""Runs any decoder-only architecture of the transformers library whose attention can be replaced by ebbtide's.

The model gets the tokens of a step as one row, [1, T], with their positions and without a cache of its own. There is no
list of supported architectures: at start, a forward pass records the attention calls, and further passes check that two
sequences, in chunks through the page table, have the same logits as with the library's own attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from ebbtide.errors import StartupError

from ..attention import AttentionBackend, LayerAttention
from ..batch import ForwardBatch
from ..checkpoint.model_config import ModelConfig
from ..checkpoint.quantization import quantization_method
from ..checkpoint.weight_loading import fill
from ..checkpoint.weights import Checkpoint
from ..context import stated_context
from ..kv.kv_pool import KVShape
from .transformers_attention import AttentionPlug, BackendAnswer, CallRecorder, plain_forward
from .transformers_probe import PROBE_TOKENS, check_against_eager, small_windows

LAYER_TYPES = {"full_attention", "sliding_attention"}
# The exceptions that model code may raise if it cannot run with ebbtide's attention.
FOREIGN_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ImportError,
    ArithmeticError,
    AssertionError,
    OSError,
)


class TransformersModel:
    """A model of the transformers library that implements ``Model``."""

    state_shape = None  # no recurrent layers

    def __init__(self, model: Any, plug: AttentionPlug, recorder: CallRecorder, *, vocab_size: int) -> None:
        self._model = model
        self._plug = plug
        self._layers = recorder.layers()
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.kv_shape: KVShape = recorder.shape()
        self.vocab_size = vocab_size
        self.weight_bytes = int(model.get_memory_footprint())

    @property
    def layers(self) -> tuple[LayerAttention, ...]:
        """The attention parameters, one entry per attention call of a forward pass."""
        return self._layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """See ``Model``."""
        return tuple(layer.window for layer in self._layers)

    @property
    def is_deterministic(self) -> bool:
        """See ``Model``. The reduction order of torch's operations depends on the batch."""
        return False

    @property
    def is_capturable(self) -> bool:
        """See ``Model``. The library's code may read values of tensors on the host."""
        return False

    def adapt_threads(self) -> None:
        """See ``Model``. Does nothing: the number of threads of torch's operations is fixed."""

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """See ``Model``. The states are the logits, [W, vocab_size], because the library's forward pass includes them.

        In a batch with ``embeds``, each row of logits is followed by the hidden state.
        """
        answer = BackendAnswer(attention, self._layers, self._model.dtype)
        compute = self._logits_and_hidden if batch.embeds else self._logits
        states, num_calls = self._plug.run(lambda: compute(batch), answer)
        assert num_calls == len(self._layers), f"{num_calls} attention calls, {len(self._layers)} layers"
        return states

    def logits(self, states: Tensor) -> Tensor:
        """See ``Model``."""
        return states[:, : self.vocab_size]

    def hidden(self, states: Tensor) -> Tensor:
        """See ``Model``. The hidden states are the inputs of the output layer."""
        return states[:, self.vocab_size :]

    def _logits_and_hidden(self, batch: ForwardBatch) -> Tensor:
        """Return the logits followed by the hidden states, [W, vocab_size + hidden]."""
        seen: list[Tensor] = []
        head = self._model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(0, -2)))
        try:
            logits = self._logits(batch)
        finally:
            hook.remove()
        hidden = seen[-1] if self._selects_logits else seen[-1][batch.wanted]
        return torch.cat((logits, hidden.to(logits.dtype)), 1)

    def _logits(self, batch: ForwardBatch) -> Tensor:
        if self._selects_logits:
            return plain_forward(self._model, batch.token_ids, batch.positions, logits_to_keep=batch.wanted)
        return plain_forward(self._model, batch.token_ids, batch.positions)[batch.wanted]


def load(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> TransformersModel:
    """Load a model. Raises StartupError if its architecture is not supported."""
    model_class = check_config(checkpoint.architecture, checkpoint.config)
    with _one_sentence(checkpoint.architecture):
        model = _read_model(model_class, checkpoint, dtype).to(device).eval()
        return _plug_in(model, stated_context(checkpoint.config))


def _plug_in(model: Any, longest: int | None) -> TransformersModel:
    """Replace the attention of a loaded model. Raises StartupError if the replacement changes the logits.

    longest: the maximum context length; None if the configuration does not state it.
    """
    plug = AttentionPlug()
    ours = _recorded(model, plug)
    check_against_eager(model, ours, plug.name, longest)
    if any(layer.window is not None for layer in ours.layers):
        with small_windows(model):
            check_against_eager(model, _recorded(model, plug), plug.name)
    return ours


def _recorded(model: Any, plug: AttentionPlug) -> TransformersModel:
    """Run one forward pass to record the attention parameters of the layers, and return the wrapped model."""
    recorder = CallRecorder()
    model.set_attn_implementation(plug.probe_name)
    ids = torch.arange(PROBE_TOKENS, device=model.device)
    with torch.inference_mode():
        logits, _ = plug.run(lambda: plain_forward(model, ids, ids), recorder)
    return TransformersModel(model, plug, recorder, vocab_size=logits.shape[-1])


def check_config(architecture: str, config: ModelConfig) -> type[transformers.PreTrainedModel]:
    """Return the transformers class of an architecture.

    Raises a StartupError with the reason if the class or the configuration shows that the model is not supported.
    """
    with _one_sentence(architecture):
        model_class = _model_class(architecture, config)
        reason = _obstacle(model_class, config)
        if reason is not None:
            raise StartupError(reason)
        return model_class


def _model_class(architecture: str, config: ModelConfig) -> type[transformers.PreTrainedModel]:
    """Return the class of causal language models for a model type.

    Raises StartupError if there is none, or if the checkpoint names another class that transformers knows.
    """
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if name is None or (name != architecture and architecture in dir(transformers)):
        raise StartupError("it is not a causal language model of the installed transformers library")
    model_class: type[transformers.PreTrainedModel] = getattr(transformers, name)
    return model_class


def _obstacle(model_class: type[transformers.PreTrainedModel], config: ModelConfig) -> str | None:
    """Return the reason why an architecture is not supported; None if no reason is known before loading."""
    if config.is_encoder_decoder:
        return "it has an encoder"
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "its attention is bidirectional"
    if model_class._is_stateful:
        return "it has recurrent layers, which ebbtide supports in LFM2 and Falcon-H1 only"
    if not model_class._can_set_attn_implementation():
        return "its attention cannot be replaced"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "it does not accept the positions of its tokens"
    return _obstacle_in_config(config)


def _obstacle_in_config(config: ModelConfig) -> str | None:
    text = config.get_text_config().to_dict()
    other = set(text.get("layer_types") or ()) - LAYER_TYPES
    if other:
        return f"it has layers of the kind {min(other)!r}"
    if text.get("add_cross_attention") or text.get("cross_attention_layers"):
        return "it has cross attention"
    method = quantization_method(config.to_dict())
    if method is not None:
        return f"its weights are quantized ({method})"
    return None


def _read_model(model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    if checkpoint.gguf is not None:
        return _read_gguf(model_class, checkpoint, dtype)
    model, loading = model_class.from_pretrained(
        checkpoint.directory,
        config=checkpoint.config,
        dtype=dtype,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    _refuse_missing(loading["missing_keys"])
    return model


def _read_gguf(model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """Create the model and fill its parameters from the tensors of the GGUF file.

    ``from_pretrained`` is not used, because it would require the package accelerate.
    """
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=dtype)
    assert isinstance(model, model_class)
    model.tie_weights()
    targets = _gguf_targets(model)
    with torch.no_grad():
        fill(targets, checkpoint.tensors(targets), name=checkpoint.files.name)
    return model


def _gguf_targets(model: Any) -> dict[str, Tensor]:
    """Return name → parameter of the tensors that a GGUF file has: without tied parameters, fused experts in parts."""
    targets = {}
    for name, parameter in model.state_dict().items():
        if name in model.all_tied_weights_keys:
            continue
        if name.endswith(".experts.gate_up_proj"):  # [experts, gate and up, hidden]
            prefix = name.removesuffix("gate_up_proj")
            targets[f"{prefix}gate_proj"], targets[f"{prefix}up_proj"] = parameter.chunk(2, 1)
        else:
            targets[name] = parameter
    return targets


def _refuse_missing(names: Collection[str]) -> None:
    if names:
        raise StartupError(f"the checkpoint lacks {min(names)!r}")


@contextmanager
def _one_sentence(architecture: str) -> Iterator[None]:
    """Convert the exceptions of the block to a StartupError that names the architecture."""
    try:
        yield
    except StartupError as error:
        raise StartupError(f"The architecture {architecture} is not supported: {str(error).rstrip('.')}.") from error
    except FOREIGN_ERRORS as error:
        reason = (" ".join(str(error).split()) or type(error).__name__)[:300].rstrip(".")
        raise StartupError(
            f"The architecture {architecture} could not be loaded through transformers: {reason}."
        ) from error
