"""Tiny random checkpoints in Hugging Face format, generated for the tests: weights, configuration, tokenizer.

Every checkpoint is float32 with fixed seeds, so that the greedy output is the same on every machine, and random enough
that the most likely token changes from position to position.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL = [PAD, BOS, EOS]
CONTEXT = 512
WINDOW = 24
CHAT_TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
CORPUS = [
    "The tide comes in and the tide goes out, and the boats in the harbour rise and fall with it.",
    "Requests wait in a queue until there is memory for them; then they run, one token at a time.",
    "def greet(name: str) -> str:\n    return f'hello, {name}'\n",
    "Ein kleiner Fluss fließt über die Wiese. L'été, la mer est bleue. ¿Dónde está la biblioteca?",
    "数字 0123456789, symbols {}[]()<>+-*/=, and an emoji 🌊 for good measure.",
    "user system assistant question answer because therefore however while before after between",
]


@dataclass(frozen=True)
class Family:
    """One model family: the name prefix of its transformers classes, and the configuration besides the small sizes."""

    prefix: str
    extra: dict[str, Any] = field(default_factory=dict)
    sizes: Callable[[], dict[str, Any]] | None = None
    embedding_scale: float = 1.0

    def config(self) -> transformers.PretrainedConfig:
        """The tiny configuration."""
        sizes = (self.sizes or _gqa_sizes)()
        config_class = getattr(transformers, f"{self.prefix}Config")
        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        return config_class(vocab_size=VOCAB_SIZE, **sizes, **ids, **self.extra)

    def model(self, *, seed: int) -> transformers.PreTrainedModel:
        """A model with random weights."""
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # norms, biases and sinks start as constants, which would hide a mistake
                    parameter.add_(torch.randn_like(parameter), alpha=0.2)
            # Small embeddings: otherwise a model with tied ones repeats its last token forever.
            model.get_input_embeddings().weight.mul_(self.embedding_scale)
        return model


def _gqa_sizes() -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.25,
    }


def _neox_sizes() -> dict[str, Any]:
    sizes = _gqa_sizes()
    del sizes["num_key_value_heads"]
    return sizes


def _gpt2_sizes() -> dict[str, Any]:
    return {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT, "initializer_range": 0.25}


# The first group runs natively, the second through transformers.
NATIVE = {
    "llama": Family("Llama", {"rope_theta": 10000.0}),
    "mistral": Family("Mistral", {"sliding_window": WINDOW, "head_dim": 16}),
    "qwen2": Family("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": Family("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}
BACKED = {
    "gemma2": Family(
        "Gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
        embedding_scale=0.25,
    ),
    "phi3": Family("Phi3", {"sliding_window": None}),
    "gpt_neox": Family("GPTNeoX", sizes=_neox_sizes),
    "gpt2": Family("GPT2", sizes=_gpt2_sizes),
    "olmo2": Family("Olmo2"),
    "gpt_oss": Family(  # sliding window on alternate layers, attention sinks, experts
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}
FAMILIES = NATIVE | BACKED


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE, like GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """SentencePiece-style BPE with byte fallback, like Llama 2, Mistral and Phi-3."""
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(byte_tokens),
        special_tokens=SPECIAL,
        initial_alphabet=[],
        show_progress=False,
    )
    # The vocabulary has only ASCII, so that everything else is encoded by byte tokens.
    tokenizer.train_from_iterator([text.encode("ascii", "ignore").decode() for text in CORPUS], trainer)
    return _with_byte_tokens(tokenizer, byte_tokens)


def _with_byte_tokens(tokenizer: Tokenizer, byte_tokens: list[str]) -> Tokenizer:
    """The same tokenizer with the byte tokens in its main vocabulary, where byte fallback looks for them."""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for token in byte_tokens:
        vocab[token] = len(vocab)
    return Tokenizer.from_str(json.dumps(state))


def write_tokenizer(folder: Path, *, sentencepiece: bool = False) -> None:
    """Write the tokenizer's files with a chat template to ``folder``."""
    tokenizer = sentencepiece_tokenizer() if sentencepiece else byte_level_tokenizer()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def write_checkpoint(
    folder: Path, family: str, *, seed: int = 7, sharded: bool = False, sentencepiece: bool = False
) -> Path:
    """Write a complete checkpoint of one of ``FAMILIES`` to ``folder``; returns the folder."""
    model = FAMILIES[family].model(seed=seed)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if sharded:
        model.save_pretrained(folder, max_shard_size="200KB")
    else:
        model.save_pretrained(folder)
    write_tokenizer(folder, sentencepiece=sentencepiece)
    return folder
