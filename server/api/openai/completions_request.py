"""The request of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from ..generation_request import GenerationRequest, NumTop
from ..prompt_list import listed
from ..unsupported import UNSUPPORTED as COMMON

DEFAULT_MAX_TOKENS = 16
UNSUPPORTED = (*COMMON, "suffix", "best_of")


class CompletionBody(GenerationRequest, kw_only=True):
    """The body of POST /v1/completions.

    Attributes:
        prompt: a string, a list of strings, a list of token ids, or a list of lists of token ids
        add_special_tokens: False if the tokenizer must not add its BOS token to a string
    """

    prompt: str | list[Any]
    logprobs: NumTop | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


def prompts_of(body: CompletionBody) -> list[str | list[Any]]:
    """Return the list of prompts. Each is a string, or a list whose entries are not checked yet.

    Raises Rejected if the list or one of its entries is empty or has another type.
    """
    return listed(body.prompt, "prompt")
