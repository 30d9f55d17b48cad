"""POST /v1/score and /score: computes the similarity of pairs of texts. A request has one of vLLM's two formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.prepared_request import Prepared

from .inputs import texts_of
from .scoring import Pairs
from .service import PoolingBody, PoolingService, Results

FORMS = (("text_1", "text_2"), ("queries", "documents"))


class ScoreBody(PoolingBody, kw_only=True):
    """A request with ``text_1`` and ``text_2``, or with ``queries`` and ``documents``.

    Each field is a string or a list. ``text_1`` or ``queries`` may have one text, which is compared with each text of
    the other field; otherwise both fields must have the same number of texts.
    """

    text_1: str | list[Any] | None = None
    text_2: str | list[Any] | None = None
    queries: str | list[Any] | None = None
    documents: str | list[Any] | None = None


@dataclass(frozen=True, slots=True)
class _Score:
    """One score request. See ``Work``.

    Attributes:
        param: the name of the field with the second text of each pair.
    """

    body: ScoreBody
    pairs: Pairs
    param: str
    created: int

    async def prepare(self) -> Prepared:
        return await self.pairs.prepare(self.body.options(self.param))

    def reply(self, results: Results) -> bytes:
        scores = self.pairs.scores(results)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return msgspec.json.encode(
            {
                "id": f"score-{results.request_id}",
                "object": "list",
                "created": self.created,
                "model": self.pairs.model.name,
                "data": data,
                "usage": results.usage,
            }
        )


@dataclass(frozen=True, slots=True)
class ScoreRoute:
    """The routes and the service that they use.

    Attributes:
        created: Unix time in seconds at which the model was loaded.
    """

    service: PoolingService
    created: int

    async def create(self, request: Request) -> Response:
        """Score pairs of texts."""
        return await self.service.answer(request, ScoreBody, (), self._work)

    def _work(self, body: ScoreBody) -> _Score:
        model = self.service.model(body.model, vectors=False)
        first, second = _form(body)
        queries, documents = (texts_of(getattr(body, name), name) for name in (first, second))
        if len(queries) not in (1, len(documents)):
            raise Rejected(
                f"'{first}' has {len(queries)} texts and '{second}' has {len(documents)}: '{first}' must have one text,"
                f" or as many as '{second}'.",
                param=first,
            )
        return _Score(body, Pairs(model, queries, documents), second, self.created)


def _form(body: ScoreBody) -> tuple[str, str]:
    """Return the names of the two fields that contain the texts.

    Raises Rejected unless the request has both fields of one pair in ``FORMS`` and no field of the other pair.
    """
    used = [form for form in FORMS if any(getattr(body, name) is not None for name in form)]
    if len(used) > 1:
        raise Rejected("Use 'text_1' and 'text_2', or 'queries' and 'documents', not both.", param=used[1][0])
    form = used[0] if used else FORMS[0]
    missing = next((name for name in form if getattr(body, name) is None), None)
    if missing is not None:
        raise Rejected(f"'{missing}' is missing.", param=missing)
    return form
