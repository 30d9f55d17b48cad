"""Fields that other servers know and this one does not. They are refused: ignoring them would change the response."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import Rejected

SELECTION = ("stop_regex", "bad_words", "allowed_token_ids", "logprob_token_ids", "use_beam_search")
PROMPT = ("truncate_prompt_tokens", "documents", "prompt_embeds", "web_search_options", "chat_template", "lora_path")
LENGTHS = ("thinking_token_budget", "min_new_tokens")
INTERNALS = ("logits_processors", "custom_logit_processor", "return_hidden_states")
CONSTRAINTS = ("grammar", "json_schema", "structural_tag")  # GenerationRequest has the supported ones
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
UNSUPPORTED = (*SELECTION, *PROMPT, *LENGTHS, *INTERNALS, *CONSTRAINTS, *GUIDED)
SUCCESSORS = {"functions": "tools", "function_call": "tool_choice"}  # deprecated field -> the field that replaced it

CHECKED_APART = ("modalities", *SUCCESSORS)  # always checked by ``refuse_unsupported``


def refuse_unsupported(raw: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raises Rejected if a field of ``names``, or a deprecated one, has a value other than null, false, "" or []."""
    for name in names:
        value = raw.get(name)
        if value is not None and value is not False and value not in ("", []):
            raise Rejected(f"'{name}' is not supported by this server.", param=name)
    for name, successor in SUCCESSORS.items():
        if raw.get(name) is not None:
            raise Rejected(f"'{name}' is not supported by this server: use '{successor}'.", param=name)
    if raw.get("modalities") not in (None, ["text"]):
        raise Rejected("'modalities' other than text is not supported by this server.", param="modalities")
