"""The options of a request that concern individual tokens: log-probabilities of output and prompt, and token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.response_stream import Delta

from .generation_request import GenerationRequest
from .logprobs import Name, as_id, as_text, chat_logprobs, prompt_logprobs

# A limit is needed because the response is built on the event loop: 10,000 tokens with 20 alternatives each take 0.3 to
# 0.7 s of CPU and 15 MB.
MAX_PROMPT_LOGPROBS = 300_000


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """The log-probability and token id options of one request.

    Attributes:
        logprobs: number of alternatives of each output token; None for no log-probabilities
        prompt_logprobs: number of alternatives of each prompt token; None for no log-probabilities
        echo: True if the response repeats the prompt
        token_ids: True if the response includes the ids of the output tokens
        prompt_ids: True if the response includes the ids of the prompt tokens; False in a session, where only the
            scheduler knows these ids
        as_ids: True if tokens are named by their ids instead of their text
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    token_ids: bool = False
    prompt_ids: bool = False
    as_ids: bool = False

    @property
    def name(self) -> Name:
        """The function that names a token in the lists of a text completion."""
        return as_id if self.as_ids else as_text

    @property
    def engine_prompt_logprobs(self) -> int | None:
        """The number of alternatives that the engine must compute at each prompt token; None for no prompt logprobs."""
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in wanted if count is not None), default=None)


def logprob_options(
    request: GenerationRequest, limit: tuple[str, int | None], *, logprobs: int | None, echo: bool = False
) -> LogprobOptions:
    """Return the options of a request.

    limit: name and value of the field that limits the number of output tokens.

    Raises Rejected if the options contradict each other.
    """
    has_session = request.session_id is not None or request.session_params is not None
    reads_prompt = "echo" if echo else "prompt_logprobs" if request.prompt_logprobs is not None else None
    name, max_tokens = limit
    if max_tokens == 0 and reads_prompt is None:
        raise Rejected(
            f"'{name}' may be 0 only together with 'echo' (in text completions) or 'prompt_logprobs'.", param=name
        )
    if reads_prompt is not None and has_session:
        raise Rejected(f"'{reads_prompt}' cannot be combined with a session.", param=reads_prompt)
    return LogprobOptions(
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        echo=echo,
        token_ids=bool(request.return_token_ids),
        prompt_ids=bool(request.return_token_ids) and not has_session,
        as_ids=bool(request.return_tokens_as_token_ids),
    )


def check_num_logprobs(options: LogprobOptions, prompts: list[list[int]], n: int) -> None:
    """Raise Rejected if the response would have more prompt log-probabilities than ``MAX_PROMPT_LOGPROBS``."""
    lists = [options.prompt_logprobs, options.logprobs if options.echo else None]
    count = sum(map(len, prompts)) * n * sum(num_top + 1 for num_top in lists if num_top is not None)
    if count > MAX_PROMPT_LOGPROBS:
        raise Rejected(
            f"The request asks for {count} log-probabilities of prompt tokens, but the limit is {MAX_PROMPT_LOGPROBS}."
            " Ask for fewer alternatives or choices, or split the prompts over several requests.",
            param="prompt_logprobs" if options.prompt_logprobs is not None else "logprobs",
        )


class ChatTokens:
    """Builds the fields of a chat response that concern individual tokens.

    Fields that were not requested are omitted.
    """

    def __init__(self, options: LogprobOptions, prompt: list[int]) -> None:
        self._options = options
        self._prompt = prompt

    def logprobs(self, delta: Delta) -> dict[str, Any] | None:
        """Return the field ``logprobs`` of a choice; None if it was not requested."""
        return None if self._options.logprobs is None else chat_logprobs(delta.logprobs, as_ids=self._options.as_ids)

    def of_choice(self, delta: Delta) -> dict[str, Any]:
        """Return the fields of a choice that concern tokens, except ``logprobs``."""
        return {"token_ids": delta.tokens} if self._options.token_ids and delta.tokens else {}

    def of_prompt(self) -> dict[str, Any]:
        """Return the response fields that are known before the engine computes anything."""
        return {"prompt_token_ids": self._prompt} if self._options.prompt_ids else {}

    def prompt_logprobs(self, delta: Delta) -> dict[str, Any]:
        """Return the field ``prompt_logprobs`` for the first delta of the first choice; {} for any other delta."""
        num_top = self._options.prompt_logprobs
        if num_top is None or delta.index != 0 or delta.cached_tokens is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(delta.prompt, num_top)}
