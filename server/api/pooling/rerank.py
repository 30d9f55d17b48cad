"""POST /v1/rerank, /rerank and /v2/rerank: orders documents by their relevance to a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.prepared_request import Prepared

from ..generation_request import LONGEST
from .inputs import texts_of
from .scoring import Pairs
from .service import PoolingBody, PoolingService, Results

UNSUPPORTED = ("max_tokens_per_doc", "max_chunks_per_doc", "rank_fields")


class RerankBody(PoolingBody, kw_only=True):
    """A request in Jina's or Cohere's format.

    Attributes:
        documents: strings, or objects with a string field ``text``
        top_n: number of documents to return; all by default
        return_documents: False to return only the indices and scores of the documents
    """

    query: str
    documents: list[Any]
    top_n: Annotated[int, Meta(ge=1, le=LONGEST)] | None = None
    return_documents: bool | None = None


@dataclass(frozen=True, slots=True)
class _Rerank:
    """One rerank request. See ``Work``."""

    body: RerankBody
    pairs: Pairs
    param: str = "documents"

    async def prepare(self) -> Prepared:
        return await self.pairs.prepare(self.body.options(self.param))

    def reply(self, results: Results) -> bytes:
        scores = self.pairs.scores(results)
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: self.body.top_n]
        return msgspec.json.encode(
            {
                "id": f"rerank-{results.request_id}",
                "model": self.pairs.model.name,
                "usage": results.usage,
                "results": [self._result(index, scores[index]) for index in order],
            }
        )

    def _result(self, index: int, score: float) -> dict[str, Any]:
        result: dict[str, Any] = {"index": index, "relevance_score": score}
        if self.body.return_documents is not False:
            result["document"] = {"text": self.pairs.documents[index]}
        return result


@dataclass(frozen=True, slots=True)
class RerankRoute:
    """The routes and the service that they use."""

    service: PoolingService

    async def create(self, request: Request) -> Response:
        """Order documents by their relevance to a query."""
        return await self.service.answer(request, RerankBody, UNSUPPORTED, self._work)

    def _work(self, body: RerankBody) -> _Rerank:
        model = self.service.model(body.model, vectors=False)
        if not body.query:
            raise Rejected("'query' is empty.", param="query")
        return _Rerank(body, Pairs(model, [body.query], texts_of(body.documents, "documents")))
