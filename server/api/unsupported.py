"""Lists request fields that other servers support and this server does not.

Such fields are refused, because ignoring them would change the response.
"""

from __future__ import annotations

from typing import Any

from ebbtide.errors import Rejected

from .neutral import asks_for_nothing

SELECTION = ("stop_regex", "bad_words", "allowed_token_ids", "logprob_token_ids", "use_beam_search")
PROMPT = ("truncate_prompt_tokens", "documents", "prompt_embeds", "web_search_options", "chat_template", "lora_path")
LENGTHS = ("thinking_token_budget", "min_new_tokens")
INTERNALS = ("logits_processors", "custom_logit_processor", "return_hidden_states")
CONSTRAINTS = ("json_schema", "structural_tag")  # the supported fields are in GenerationRequest
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
UNSUPPORTED = (*SELECTION, *PROMPT, *LENGTHS, *INTERNALS, *CONSTRAINTS, *GUIDED)
SUCCESSORS = {"functions": "tools", "function_call": "tool_choice"}  # deprecated field -> the field that replaced it

CHECKED_APART = ("modalities", *SUCCESSORS)  # always checked by ``refuse_unsupported``


def refuse_unsupported(raw: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise Rejected if a field in ``names`` or ``CHECKED_APART`` has a value that would have an effect."""
    for name in (*names, *CHECKED_APART):
        if not asks_for_nothing(name, raw.get(name)):
            what = f"'{name}' other than text" if name == "modalities" else f"'{name}'"
            use = f": use '{SUCCESSORS[name]}'" if name in SUCCESSORS else ""
            raise Rejected(f"{what} is not supported by this server{use}.", param=name)
