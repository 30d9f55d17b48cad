"""Converts text and chats to token ids, with Hugging Face tokenizers or the tokenizer of the simulated model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ..errors import Rejected, StartupError
from .chat_template import ChatTemplate
from .gguf_tokenizer import load_gguf_tokenizer
from .message_text import MessageShield, RenamedControlTokens, longest_first
from .model_files import ModelFiles, one_line, read_json_object
from .template_limits import TemplateLimitError
from .token_bytes import strips_first_space, token_bytes
from .tokenizer_parts import SPECIAL_TOKENS, TokenizerParts
from .transformers_tokenizer import load_with_transformers
from .vocabulary import SIM_SPECIAL, SIM_VOCAB_SIZE, Vocabulary, sim_vocabulary

Chat = list[dict[str, Any]]
# Template variables that a request must not set: those that the server sets, the special tokens, the functions that
# templates can call, and the parameters of transformers' rendering functions.
RESERVED_VARIABLES = frozenset(
    {
        *("messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
        *("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner", "loop"),
        *("self", "conversation", "conversations", "tokenize", "sanitize_control_tokens", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "kwargs"),
    }
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model")
MAX_SPARSE_IDS, IDS_PER_TOKEN = 1 << 20, 8  # limits of the number of ids of a vocabulary with gaps
Skip = Callable[[str], int]  # rendered chat → number of leading characters to drop


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation to render.

    Attributes:
        messages: dicts as templates read them; ``content`` is a string.
        add_generation_prompt: True to append the beginning of an assistant message.
        continue_final_message: True to leave the last message open, so that the model continues it.
        template_kwargs: additional template variables; none of ``RESERVED_VARIABLES``.
        tools: definitions of the tools that the template describes; None for no tools.
    """

    messages: Chat
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None


class TextTokenizer(Protocol):
    """The tokenizer of one model. Thread-safe."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token id, the control tokens and the end tokens."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def chat_template(self) -> str:
        """Source of the model's chat template; "" if the model has none."""

    @property
    def info(self) -> dict[str, Any]:
        """The tokenizer's class, special tokens and chat template, under their names in tokenizer_config.json."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode plain text. add_special_tokens: True to let the tokenizer add its BOS and EOS tokens."""

    def render_chat(self, chat: ChatPrompt) -> str:
        """Render the conversation with the model's template.

        Raises Rejected if the template rejects the conversation.
        """

    def encode_chat(self, chat: ChatPrompt, skip: Skip = lambda _: 0) -> list[int]:
        """Encode the rendered conversation. Only the template itself can produce control tokens.

        ``skip`` receives the rendered text, in which lookalikes of control tokens in messages are replaced by
        placeholders, and returns the number of leading characters to drop. ``skip`` may raise Rejected.
        """


def load_tokenizer(files: ModelFiles) -> TextTokenizer:
    """Load the tokenizer of a model. Raises StartupError if a file is missing or invalid."""
    if files.simulated:
        return SimTokenizer()
    return FastTokenizer(load_parts(files))


def load_parts(files: ModelFiles) -> TokenizerParts:
    """Load the parts of a model's tokenizer from disk. Raises StartupError if a file is missing or invalid."""
    if not files.gguf:
        # Read this file first, so that an error in it is not reported as an error of the tokenizer.
        read_json_object(Path(files.directory) / "config.json")
    try:
        directory = Path(files.directory)
        return load_gguf_tokenizer(directory / files.gguf) if files.gguf else load_with_transformers(directory)
    except StartupError:
        raise
    except Exception as error:  # the libraries that read the files do not document their exceptions for invalid values
        if not files.gguf:
            _find_damaged_file(Path(files.directory))
        where = f"{files.directory}/{files.gguf}" if files.gguf else files.directory
        hint = " Is the file complete?" if files.gguf and "support" not in str(error) else ""
        raise StartupError(f"The tokenizer in {where} cannot be loaded: {one_line(error)}.{hint}") from error


def _find_damaged_file(directory: Path) -> None:
    """Raise a StartupError that names the file if a file of the tokenizer is missing or is not a JSON object."""
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise StartupError(f"The folder {directory} has no tokenizer: there is no tokenizer.json.")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (directory / name).exists():
            read_json_object(directory / name)


class FastTokenizer:
    """A Hugging Face tokenizer with a Rust backend."""

    def __init__(self, parts: TokenizerParts) -> None:
        backend = parts.backend
        backend.no_truncation()
        backend.no_padding()
        self._parts = parts
        self._backend = backend
        self._template = ChatTemplate(parts.chat_template)
        self._special_text = re.compile("|".join(map(re.escape, longest_first(parts.special.values()))) or r"(?!)")
        self.vocab_size = _vocab_size(backend.get_vocab(with_added_tokens=True))
        ends = parts.eos_ids | self._end_of_turn()
        self.vocabulary = Vocabulary(
            pieces=token_bytes(backend, self.vocab_size),
            special_ids=sorted(parts.special),
            eos_ids=sorted(i for i in ends if i < self.vocab_size),
            strips_first_space=strips_first_space(backend),
        )

    @property
    def chat_template(self) -> str:
        """All templates of the model in one string: some models have a second template for tools."""
        template = self._parts.chat_template or ""
        return "\n".join(template.values()) if isinstance(template, dict) else template

    @property
    def info(self) -> dict[str, Any]:
        """See ``TextTokenizer``. If there are several chat templates, the default one is included."""
        template = self._parts.chat_template
        return {
            "tokenizer_class": self._parts.class_name,
            **{name: self._parts.named.get(name) for name in SPECIAL_TOKENS},
            "chat_template": template.get("default") if isinstance(template, dict) else template,
        }

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode text. Control tokens that are written in the text are encoded as control tokens."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def render_chat(self, chat: ChatPrompt) -> str:
        """Render the conversation. Raises Rejected if the model has no template or it refuses the messages."""
        if not self._parts.chat_template:
            raise Rejected("This model has no chat template: use /v1/completions.", param="messages")
        try:
            return self._render(chat)
        except TemplateLimitError as error:
            raise Rejected(f"The chat template cannot render these messages: {error}.", param="messages") from error
        except Exception as error:  # templates raise arbitrary exceptions about roles and their order
            raise Rejected(f"The chat template refuses these messages: {error}"[:500], param="messages") from error

    def encode_chat(self, chat: ChatPrompt, skip: Skip = lambda _: 0) -> list[int]:
        """Encode a conversation. Text of the client that looks like a control token is encoded as plain text."""
        shield = MessageShield(self._special_text)
        messages = [shield.message(message) for message in chat.messages]
        tools = None if chat.tools is None else [shield.tool(tool) for tool in chat.tools]
        variables = {name: shield.value(value) for name, value in chat.template_kwargs.items()}
        rendered = self.render_chat(replace(chat, messages=messages, tools=tools, template_kwargs=variables))
        text = rendered[skip(rendered) :]
        if not shield.is_used:
            return self.encode(text, add_special_tokens=False)
        return self._renamed.encode(shield.restored(self._renamed.renamed(text)))

    def _render(self, chat: ChatPrompt) -> str:
        """Render the conversation. Raises TemplateLimitError, and any exception that the template raises."""
        return self._template.render(
            chat.messages,
            chat.tools,
            {**self._parts.named, **chat.template_kwargs},
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )

    @cached_property
    def _renamed(self) -> RenamedControlTokens:
        """A second tokenizer, created only when a message contains the text of a control token."""
        return RenamedControlTokens(self._backend, self._parts.special)

    def _end_of_turn(self) -> set[int]:
        """Return the control token that the template writes after an assistant message, if any."""
        if not self._parts.chat_template:
            return set()
        turn = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Kittens"}]
        try:
            rendered = self._render(ChatPrompt(turn, add_generation_prompt=False))
        except TemplateLimitError as error:
            raise StartupError(f"The chat template of the model cannot render a short chat: {error}.") from error
        except Exception:  # see render_chat; the template may support other conversations
            return set()
        tail = self.encode(rendered.rpartition("Kittens")[2], add_special_tokens=False)
        return set([token for token in tail if token in self._parts.special][:1])


def _vocab_size(ids: dict[str, int]) -> int:
    """Return the number of token ids. Raises StartupError if there are none, or if one is far too large."""
    if not ids:
        raise StartupError("The tokenizer of the model has no tokens.")
    token, largest = max(ids.items(), key=lambda item: item[1])
    if largest >= max(MAX_SPARSE_IDS, IDS_PER_TOKEN * len(ids)):  # the bytes of every id are kept
        raise StartupError(
            f"The tokenizer of the model has {len(ids)} tokens, but the id of the token {token[:50]!r} is {largest}."
        )
    return largest + 1


class SimTokenizer:
    """The simulated model's tokenizer: one token per UTF-8 byte, and four control tokens.

    Only the fixed chat template produces control tokens.
    """

    def __init__(self) -> None:
        self.vocabulary = sim_vocabulary()
        self.vocab_size = SIM_VOCAB_SIZE
        self.chat_template = ""
        self.info = {"tokenizer_class": "SimTokenizer", **dict.fromkeys(SPECIAL_TOKENS), "eos_token": "<|end|>"}
        self.info["chat_template"] = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the UTF-8 bytes of the text. There is no BOS token, and text is never encoded as a control token."""
        return list(text.encode())

    def render_chat(self, chat: ChatPrompt) -> str:
        """Return the conversation as text, with the names of the control tokens."""
        return "".join(text for text, _ in self._turns(chat))

    def encode_chat(self, chat: ChatPrompt, skip: Skip = lambda _: 0) -> list[int]:
        """Encode the conversation with control tokens around the messages. ``skip`` must not cut a control token."""
        left = skip(self.render_chat(chat))
        ids: list[int] = []
        for text, control in self._turns(chat):
            wanted = text[left:]
            left -= len(text) - len(wanted)
            ids += [SIM_SPECIAL[wanted]] if control and wanted else wanted.encode()
        return ids

    def _turns(self, chat: ChatPrompt) -> list[tuple[str, bool]]:
        turns: list[tuple[str, bool]] = []
        for message in chat.messages:
            role = message["role"] if message["role"] in ("system", "assistant") else "user"
            turns += [(f"<|{role}|>", True), (message["content"], False), ("<|end|>", True)]
        if chat.continue_final_message:
            turns.pop()
        elif chat.add_generation_prompt:
            turns.append(("<|assistant|>", True))
        return turns
