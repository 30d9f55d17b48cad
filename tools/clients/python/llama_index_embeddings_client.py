"""LlamaIndex's OpenAIEmbedding: one text, a batch, and both in asyncio."""

import asyncio
import math

from llama_index.embeddings.openai import OpenAIEmbedding
from trip import MODEL, V1, check

TEXTS = ["the tide goes out", "bread is baked in an oven", "größer 日本 👩‍👩‍👧"]
model = OpenAIEmbedding(model_name=MODEL, api_base=V1, api_key="none", embed_batch_size=2)
vectors = model.get_text_embedding_batch(TEXTS)
check([len(vector) for vector in vectors], [64] * 3)
check([round(math.hypot(*vector), 5) for vector in vectors], [1.0] * 3)
check(model.get_text_embedding(TEXTS[2]), vectors[2])
check(model.get_query_embedding(TEXTS[0]), vectors[0])
check(asyncio.run(model.aget_text_embedding_batch(TEXTS)), vectors)
