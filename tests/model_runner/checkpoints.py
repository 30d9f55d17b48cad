"""Tiny random checkpoints in Hugging Face format, generated for the tests: weights, configuration, tokenizer.

Every checkpoint is float32 with fixed seeds, so that the greedy output is the same on every machine, and random enough
that the most likely token changes from position to position.
"""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .families import FAMILIES, VOCAB_SIZE

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL = [PAD, BOS, EOS]
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
