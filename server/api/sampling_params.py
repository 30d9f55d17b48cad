"""Converts request fields to the parameters of the scheduler, the runner and the detokenizer.

The module does not depend on routes.
"""

from __future__ import annotations

import secrets

from msgspec import structs

from ebbtide.errors import Rejected
from ebbtide.messages import SamplingParams, TextParams
from ebbtide.tokenizer_mgr.prompts import PromptReader

from .generation_request import GenerationRequest

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 4096
MAX_CHOICES = 1024  # maximum of n × number of prompts in one request
MAX_PROMPT_TOKENS = (
    1 << 23
)  # maximum of n × number of prompt tokens in one request; the scheduler needs 8 bytes for each
GREEDY_BELOW = 1e-3  # a lower temperature has the effect of greedy sampling, and would underflow in half precision
SMALLEST_TOP_P = 1e-9  # OpenAI accepts top_p = 0, which keeps only the most likely token


def text_params(request: GenerationRequest) -> TextParams:
    """Return the parameters of the detokenizer.

    Raises Rejected if there are too many stop strings or one is too long.
    """
    stop = [request.stop] if isinstance(request.stop, str) else [entry for entry in request.stop or () if entry]
    if len(stop) > MAX_STOP_STRINGS:
        raise Rejected(f"'stop' has {len(stop)} entries; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    if any(len(entry.encode()) > MAX_STOP_BYTES for entry in stop):
        raise Rejected(f"'stop' has an entry that is longer than {MAX_STOP_BYTES} bytes.", param="stop")
    include_stop = bool(request.include_stop_str_in_output or request.no_stop_trim)
    return TextParams(
        stop=tuple(dict.fromkeys(stop)),
        include_stop=include_stop,
        shown_stop_ids=tuple(dict.fromkeys(request.stop_token_ids or ())) if include_stop else (),
        skip_special_tokens=request.skip_special_tokens is not False,
        min_tokens=request.min_tokens or 0,
    )


def sampling_params(
    request: GenerationRequest, reader: PromptReader, *, logprobs: int | None, prompt_logprobs: int | None = None
) -> SamplingParams:
    """Return the sampling parameters of all prompts. Raises Rejected if a token id is outside the vocabulary.

    max_tokens and seed depend on the prompt: see ``for_prompt``.
    """
    temperature = _or(request.temperature, 1.0)
    ignore_eos = bool(request.ignore_eos)
    stop_ids = reader.checked_ids(request.stop_token_ids or [], "stop_token_ids")
    return SamplingParams(
        max_tokens=0,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=max(_or(request.top_p, 1.0), SMALLEST_TOP_P),
        top_k=_top_k(request.top_k, reader.vocab_size),
        min_p=_or(request.min_p, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        logit_bias=_logit_bias(request.logit_bias or {}, reader.vocab_size),
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys([*stop_ids, *(() if ignore_eos else reader.extra_stop_ids)])),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def for_prompt(sampling: SamplingParams, *, max_tokens: int, seed: int | None) -> SamplingParams:
    """Return ``sampling`` with the output limit for one prompt, and with a random seed if ``seed`` is None.

    Raises Rejected if ``max_tokens`` is less than min_tokens.
    """
    if sampling.min_tokens > max_tokens:
        raise Rejected(
            f"'min_tokens' is {sampling.min_tokens}, but at most {max_tokens} output tokens are allowed.",
            param="min_tokens",
        )
    return structs.replace(sampling, max_tokens=max_tokens, seed=secrets.randbits(63) if seed is None else seed)


def check_num_choices(num_prompts: int, n: int) -> None:
    """Raise Rejected if a request has more than ``MAX_CHOICES`` choices."""
    if num_prompts * n > MAX_CHOICES:
        raise Rejected(
            f"{num_prompts} prompts times {n} choices exceed the limit of {MAX_CHOICES} choices per request.", param="n"
        )


def check_prompt_tokens(prompts: list[list[int]], n: int, param: str = "prompt") -> None:
    """Raise Rejected if all choices together have more than ``MAX_PROMPT_TOKENS`` prompt tokens.

    param: the name of the field that contains the prompts.
    """
    count = sum(map(len, prompts))
    if count * n > MAX_PROMPT_TOKENS:
        raise Rejected(
            f"{count} prompt tokens times {n} choices exceed the limit of {MAX_PROMPT_TOKENS} tokens per request. Ask"
            " for fewer choices, or split the prompts over several requests.",
            param="n" if n > 1 else param,
        )


def check_stream(request: GenerationRequest) -> None:
    """Raise Rejected if usage options of a stream are set but the request is not a streaming request."""
    options = request.stream_options
    if options and (options.include_usage or options.continuous_usage_stats) and not request.stream:
        raise Rejected("'stream_options' is only allowed together with 'stream': true.", param="stream_options")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _top_k(value: int | None, vocab_size: int) -> int:
    return 0 if value is None or value < 1 or value >= vocab_size else value


def _logit_bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20 and int(key) < vocab_size):
            raise Rejected(
                f"'logit_bias' has the key {key[:50]!r}, but keys must be token ids from 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
        result[int(key)] = value
    return result
