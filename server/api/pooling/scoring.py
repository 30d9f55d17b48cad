"""Scores documents for queries: with a model that scores pairs, or by the cosine similarity of two vectors."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.tokenizer_mgr.prepared_request import Prepared

from .pooling_model import InputOptions, PoolingModel
from .service import Results
from .vectors import similarities, vector_of


@dataclass(frozen=True, slots=True)
class Pairs:
    """The documents to score, and one query for all documents or one query for each document."""

    model: PoolingModel
    queries: list[str]
    documents: list[str]

    async def prepare(self, options: InputOptions) -> Prepared:
        """Return the request to the engine. Raises Rejected if a text is invalid or too long."""
        if not self.model.scores_pairs:
            return await self.model.prepare([*self.queries, *self.documents], options)
        queries = self.queries * len(self.documents) if len(self.queries) == 1 else self.queries
        return await self.model.prepare_pairs(list(zip(queries, self.documents, strict=True)), options)

    def scores(self, results: Results) -> list[float]:
        """Return one score per document."""
        if self.model.scores_pairs:
            return [float(vector_of(data)[0]) for data in results.vectors]
        count = len(self.queries)
        return similarities(results.vectors[:count], results.vectors[count:])
