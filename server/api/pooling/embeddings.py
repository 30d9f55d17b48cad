"""POST /v1/embeddings: computes one vector for each string or list of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.tokenizer_mgr.prepared_request import Prepared

from ..generation_request import LONGEST
from .inputs import inputs_of
from .pooling_model import PoolingModel
from .service import PoolingBody, PoolingService, Results
from .vectors import shortened, vector_of, written


class EmbeddingBody(PoolingBody, kw_only=True):
    """The body of POST /v1/embeddings.

    Attributes:
        input: a string, a list of strings, a list of token ids, or a list of lists of token ids
        encoding_format: "float", or "base64" for base64-encoded little-endian float32 values
        dimensions: length to which vectors are shortened; only for models that were trained for it
    """

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=LONGEST)] | None = None


@dataclass(frozen=True, slots=True)
class _Embedding:
    """One embedding request. See ``Work``."""

    model: PoolingModel
    body: EmbeddingBody
    param: str = "input"

    async def prepare(self) -> Prepared:
        if self.body.dimensions is not None:
            self.model.check_dimensions(self.body.dimensions)
        return await self.model.prepare(inputs_of(self.body.input, self.param), self.body.options(self.param))

    def reply(self, results: Results) -> bytes:
        """Encode the response vector by vector, because encoding holds the GIL."""
        data = [msgspec.Raw(self._entry(index, vector)) for index, vector in enumerate(results.vectors)]
        return msgspec.json.encode(
            {
                "id": f"embd-{results.request_id}",
                "object": "list",
                "data": data,
                "model": self.model.name,
                "usage": results.usage,
            }
        )

    def _entry(self, index: int, data: bytes) -> bytes:
        vector = shortened(vector_of(data), self.body.dimensions)
        form = written(vector, self.body.encoding_format or "float")
        return msgspec.json.encode({"object": "embedding", "index": index, "embedding": form})


@dataclass(frozen=True, slots=True)
class EmbeddingsRoute:
    """The route and the service that it uses."""

    service: PoolingService

    async def create(self, request: Request) -> Response:
        """Compute one vector for each string or list of token ids."""
        return await self.service.answer(request, EmbeddingBody, (), self._work)

    def _work(self, body: EmbeddingBody) -> _Embedding:
        return _Embedding(self.service.model(body.model, vectors=True), body)
