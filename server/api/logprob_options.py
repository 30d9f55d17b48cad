"""What a client wants to know of single tokens: log-probabilities of answer and prompt, and ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.response_stream import Delta

from .logprobs import Name, as_id, as_text, chat_logprobs, prompt_logprobs
from .session_request import SessionFields

# A reply is built on the event loop: 10,000 tokens with 20 alternatives each take 0.3 to 0.7 s of CPU, and up to 15 MB.
MAX_NAMED = 300_000
LOOKS = "'echo' (in text completions) or 'prompt_logprobs'"


class TokenFields(SessionFields, Protocol):
    """What the bodies of the OpenAI routes have in common."""

    @property
    def prompt_logprobs(self) -> int | None:
        """How many alternatives to name at each token of the prompt."""

    @property
    def return_token_ids(self) -> bool | None:
        """Send the ids of prompt and answer."""

    @property
    def return_tokens_as_token_ids(self) -> bool | None:
        """Name tokens by their ids where log-probabilities are listed."""


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """logprobs, prompt_logprobs: how many alternatives each, None when not wanted. echo: the prompt comes back too.

    token_ids: those of the answer. prompt_ids: those of the prompt, which nobody but the scheduler knows in a session.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    token_ids: bool = False
    prompt_ids: bool = False
    as_ids: bool = False

    @property
    def name(self) -> Name:
        """How tokens are named in the lists of a text completion."""
        return as_id if self.as_ids else as_text

    @property
    def scored(self) -> int | None:
        """How many alternatives the engine must name at each prompt token; None when it need not look at them."""
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in wanted if count is not None), default=None)


def logprob_options(
    fields: TokenFields, limit: tuple[str, int | None], *, logprobs: int | None, echo: bool = False
) -> LogprobOptions:
    """limit: the field that limits the answer, and its value. Raises Rejected for wishes that do not go together."""
    has_session = fields.session_id is not None or fields.session_params is not None
    wishes = LogprobOptions(
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        echo=echo,
        token_ids=bool(fields.return_token_ids),
        prompt_ids=bool(fields.return_token_ids) and not has_session,
        as_ids=bool(fields.return_tokens_as_token_ids),
    )
    looks_back = "echo" if echo else "prompt_logprobs" if fields.prompt_logprobs is not None else None
    name, max_tokens = limit
    if max_tokens == 0 and looks_back is None:
        raise Rejected(f"'{name}' is 0: that is only for a look at the prompt, with {LOOKS}.", param=name)
    if looks_back is not None and has_session:
        raise Rejected(f"'{looks_back}' cannot be combined with a session.", param=looks_back)
    return wishes


def check_named(wishes: LogprobOptions, prompts: list[list[int]], n: int) -> None:
    """Raises Rejected when more tokens of the prompts would be named in the reply than the server writes at once."""
    lists = [wishes.prompt_logprobs, wishes.logprobs if wishes.echo else None]
    named = sum(map(len, prompts)) * n * sum(count + 1 for count in lists if count is not None)
    if named > MAX_NAMED:
        raise Rejected(
            f"{named} log-probabilities of prompt tokens are more than the {MAX_NAMED} that one request may ask for."
            " Ask for fewer alternatives or choices, or split the prompts over several requests.",
            param="prompt_logprobs" if wishes.prompt_logprobs is not None else "logprobs",
        )


class ChatTokens:
    """What one chat answer says of single tokens; empty where nothing was asked for."""

    def __init__(self, wishes: LogprobOptions, prompt: list[int]) -> None:
        self._wishes = wishes
        self._prompt = prompt

    def logprobs(self, delta: Delta) -> dict[str, Any] | None:
        """``logprobs`` of a choice."""
        return None if self._wishes.logprobs is None else chat_logprobs(delta.logprobs, as_ids=self._wishes.as_ids)

    def of_choice(self, delta: Delta) -> dict[str, Any]:
        """What stands in a choice besides."""
        return {"token_ids": delta.tokens} if self._wishes.token_ids and delta.tokens else {}

    def of_prompt(self) -> dict[str, Any]:
        """What is known of the prompt before anything is computed."""
        return {"prompt_token_ids": self._prompt} if self._wishes.prompt_ids else {}

    def scores(self, delta: Delta) -> dict[str, Any]:
        """What the first delta of the first choice brings of the prompt."""
        num_top = self._wishes.prompt_logprobs
        told = num_top is not None and delta.index == 0 and delta.cached_tokens is not None
        return {"prompt_logprobs": prompt_logprobs(delta.prompt, num_top)} if told and num_top is not None else {}
