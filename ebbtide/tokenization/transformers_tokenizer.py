"""Loads the tokenizer of a folder in Hugging Face format with transformers.

In this package, only this module imports transformers. The daemon runs it in a separate process: ``tokenizer_cache``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import StartupError
from .model_files import read_json_object, token_ids
from .tokenizer_parts import TokenizerParts


def load_with_transformers(directory: Path) -> TokenizerParts:
    """Load the tokenizer. Raises StartupError if it has no fast version. transformers may raise any other exception."""
    from transformers import AutoTokenizer

    _check_template(directory / "tokenizer_config.json")
    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, **_plain_config(directory))
    if not tokenizer.is_fast:
        raise StartupError(f"The tokenizer in {directory} has no fast version (tokenizer.json), which is needed.")
    return parts_of(tokenizer, configured_eos(directory))


def _check_template(path: Path) -> None:
    """Raise StartupError if the field ``chat_template`` in the file has a form that transformers does not accept."""
    if not path.exists():
        return
    template = read_json_object(path).get("chat_template")
    named = template if isinstance(template, list) else []
    if isinstance(template, dict):
        named = [{"name": name, "template": text} for name, text in template.items()]
    is_valid = isinstance(template, str | None) or all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
        for one in named or [None]
    )
    if not is_valid:
        raise StartupError(f"The field chat_template in {path} must be a text or texts by name, not {template!r:.80}.")


def parts_of(tokenizer: Any, eos_ids: set[int] | frozenset[int] = frozenset()) -> TokenizerParts:
    """Return the parts of a ``PreTrainedTokenizerFast``. eos_ids: ids of additional tokens that end a text."""
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | set(
        tokenizer.all_special_ids
    )
    return TokenizerParts(
        backend=tokenizer.backend_tokenizer,
        class_name=type(tokenizer).__name__,
        special={i: str(text) for i in sorted(special) if (text := tokenizer.convert_ids_to_tokens(i))},
        named=dict(tokenizer.special_tokens_map),
        chat_template=tokenizer.chat_template,
        eos_ids=frozenset(eos_ids | ({tokenizer.eos_token_id} - {None})),
    )


def _plain_config(directory: Path) -> dict[str, Any]:
    """Return the argument ``config`` for AutoTokenizer; {} if the model type is unknown.

    The configuration has the defaults of the model type, so that an invalid value in config.json causes no error.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    stored = read_json_object(directory / "config.json")
    if not isinstance(stored.get("model_type"), str) or stored["model_type"] not in CONFIG_MAPPING:
        return {}
    config = CONFIG_MAPPING[stored["model_type"]](name_or_path=str(directory))
    if isinstance(stored.get("tokenizer_class"), str):
        config.tokenizer_class = stored["tokenizer_class"]
    return {"config": config}


def configured_eos(directory: Path) -> set[int]:
    """Return the end-of-text token ids in generation_config.json and config.json. A missing file is ignored."""
    paths = [directory / name for name in ("generation_config.json", "config.json")]
    found = [token_ids(read_json_object(path).get("eos_token_id"), str(path)) for path in paths if path.is_file()]
    return set().union(*found)
