"""The models that compute embeddings or scores: the chat model, which the scheduler runs, and the encoder's model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ebbtide.errors import Rejected
from ebbtide.messages import EncodeReq, EncoderInfo, SamplingParams, TextParams, ToEngine
from ebbtide.tokenizer_mgr.prepared_request import Prepared, PreparedRequest, Sender
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ..sampling_params import check_prompt_tokens

EMBEDDING = SamplingParams(max_tokens=0, embedding=True)
LONGEST_TOKEN = (
    256  # in characters: a string with more characters per token of the context length is not even tokenized
)

Input = str | list[Any]  # a string, or a list of token ids that are not checked yet


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The fields of a request that concern all of its inputs.

    Attributes:
        param: the name of the field that contains the inputs, for errors.
        namespace: the prefix cache namespace that the client selected.
        marks: True if the tokenizer adds its special tokens to a string.
    """

    param: str
    priority: int = 0
    namespace: str = ""
    marks: bool = True


class PoolingModel(Protocol):
    """A model that computes embeddings or scores pairs of texts."""

    @property
    def name(self) -> str: ...

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of an input."""

    @property
    def scores_pairs(self) -> bool:
        """True if the model scores pairs and computes no vectors."""

    def check_dimensions(self, wanted: int) -> None:
        """Raise Rejected unless the vectors may be shortened to ``wanted`` dimensions."""

    async def prepare(self, inputs: Sequence[Input], options: InputOptions) -> Prepared:
        """Return the request for one vector per input. Raises Rejected if an input is invalid or too long."""

    async def prepare_pairs(self, pairs: Sequence[tuple[str, str]], options: InputOptions) -> Prepared:
        """Return the request for one score per pair. Call it only if ``scores_pairs``.

        Raises Rejected if a text is too long.
        """


@dataclass(frozen=True, slots=True)
class ChatModel:
    """The chat model. The vector of an input is the normalized hidden state of its last token."""

    name: str
    reader: PromptReader
    scores_pairs: bool = False

    @property
    def context_length(self) -> int:
        """See ``PoolingModel``."""
        return self.reader.info.context_length

    def check_dimensions(self, wanted: int) -> None:
        """See ``PoolingModel``. A chat model is never trained for shortened vectors."""
        raise _fixed_dimensions(self.name, wanted)

    async def prepare(self, inputs: Sequence[Input], options: InputOptions) -> Prepared:
        """See ``PoolingModel``."""
        param = options.param
        prompts = []
        for one in inputs:
            ids = await self.reader.text_or_ids(one, param, add_special_tokens=options.marks, text_param=param)
            self.reader.check_prompt(len(ids), param)
            prompts.append(ids)
        check_prompt_tokens(prompts, 1, param)
        return PreparedRequest(
            prompts=prompts,
            sampling=[EMBEDDING] * len(prompts),
            text=TextParams(),
            priority=options.priority,
            namespace=options.namespace,
        )

    async def prepare_pairs(self, pairs: Sequence[tuple[str, str]], options: InputOptions) -> Prepared:
        """See ``PoolingModel``."""
        raise AssertionError("a chat model scores no pairs")


@dataclass(frozen=True, slots=True)
class PreparedEncoding:
    """A request to the encoder.

    Attributes:
        inputs: one message per result, with an empty id.
    """

    inputs: list[EncodeReq]

    @property
    def num_choices(self) -> int:
        """See ``Prepared``."""
        return len(self.inputs)

    def messages(self, rids: Sequence[str], sender: Sender, spent_s: float) -> Iterator[ToEngine]:
        """See ``Prepared``."""
        left_s = None if sender.timeout_s is None else max(sender.timeout_s - spent_s, 0.0)
        for rid, one in zip(rids, self.inputs, strict=True):
            yield EncodeReq(rid, one.text, one.other, one.ids, left_s)


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """The model of the encoder process, which tokenizes texts itself."""

    name: str
    info: EncoderInfo

    @property
    def context_length(self) -> int:
        """See ``PoolingModel``."""
        return self.info.context_length

    @property
    def scores_pairs(self) -> bool:
        """See ``PoolingModel``."""
        return self.info.scores_pairs

    def check_dimensions(self, wanted: int) -> None:
        """See ``PoolingModel``."""
        size = self.info.dimensions
        if wanted > size:
            raise Rejected(
                f"'dimensions' is {wanted}, but the vectors of {self.name!r} have {size} dimensions.",
                param="dimensions",
            )
        if wanted < size and not self.info.shorter:
            raise _fixed_dimensions(self.name, wanted)

    async def prepare(self, inputs: Sequence[Input], options: InputOptions) -> Prepared:
        """See ``PoolingModel``."""
        return PreparedEncoding([self._request(one, options.param) for one in inputs])

    async def prepare_pairs(self, pairs: Sequence[tuple[str, str]], options: InputOptions) -> Prepared:
        """See ``PoolingModel``."""
        for text in {text for pair in pairs for text in pair}:
            self._check_size(text, options.param)
        return PreparedEncoding([EncodeReq("", query, document) for query, document in pairs])

    def _request(self, one: Input, param: str) -> EncodeReq:
        if isinstance(one, str):
            self._check_size(one, param)
            return EncodeReq("", one)
        largest = self.info.vocab_size - 1
        for token in one:
            if type(token) is not int or not 0 <= token <= largest:
                raise Rejected(
                    f"'{param}' has the entry {str(token)[:50]!r}, which is not a token id: ids are integers from 0 to"
                    f" {largest}.",
                    param=param,
                )
        return EncodeReq("", ids=one)

    def _check_size(self, text: str, param: str) -> None:
        limit = self.info.context_length
        if len(text) > limit * LONGEST_TOKEN:
            raise Rejected(
                f"'{param}' has a string of {len(text)} characters, more than this model's maximum context length of"
                f" {limit} tokens can hold.",
                code="context_length_exceeded",
                param=param,
            )


def _fixed_dimensions(name: str, wanted: int) -> Rejected:
    return Rejected(
        f"'dimensions' is {wanted}, but the model {name!r} was not trained for shortened vectors.", param="dimensions"
    )
