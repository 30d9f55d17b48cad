"""The models that the engine has loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.config import ServeConfig
from ebbtide.messages import RunnerInfo
from ebbtide.tokenization.tokenizer import TextTokenizer

from .api.pooling.pooling_model import EncoderModel
from .metrics.liveness import CHILDREN


@dataclass(frozen=True, slots=True)
class ChatModelParts:
    """The chat model.

    Attributes:
        name: its name in the API.
        info: the report of the model runner.
    """

    name: str
    tokenizer: TextTokenizer
    info: RunnerInfo


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """The models of the engine. At least one of them is not None."""

    chat: ChatModelParts | None = None
    encoder: EncoderModel | None = None

    @property
    def name(self) -> str:
        """The name of the first model, for metrics."""
        return self.chat.name if self.chat is not None else self._encoder.name

    def names(self, config: ServeConfig) -> list[str]:
        """Return all served model names, those of the chat model first."""
        chat = (config.server.served_model_name or (self.chat.name,)) if self.chat is not None else ()
        return [*chat, *((self.encoder.name,) if self.encoder is not None else ())]

    @property
    def context_length(self) -> int:
        """The context length of the first model, in tokens."""
        return self.chat.info.context_length if self.chat is not None else self._encoder.info.context_length

    @property
    def page_sizes(self) -> dict[str, int]:
        """The tokens per page of each pool, by its name."""
        return {} if self.chat is None else {pool.name: pool.page_size for pool in self.chat.info.pools}

    @property
    def processes(self) -> list[str]:
        """The names of the processes that send heartbeats."""
        return [*(CHILDREN if self.chat is not None else ()), *(("encoder",) if self.encoder is not None else ())]

    @property
    def _encoder(self) -> EncoderModel:
        assert self.encoder is not None, "there is no model"
        return self.encoder
