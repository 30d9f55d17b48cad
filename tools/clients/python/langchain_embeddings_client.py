"""LangChain's OpenAIEmbeddings: documents, a query, and a vector store that finds a document by its own text."""

import math

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from trip import MODEL, V1, check

TEXTS = ["the tide goes out", "bread is baked in an oven", "größer 日本 👩‍👩‍👧"]
# Without this setting, LangChain tokenizes with OpenAI's vocabulary and sends the ids of another model.
model = OpenAIEmbeddings(model=MODEL, base_url=V1, api_key="none", check_embedding_ctx_length=False, chunk_size=2)
vectors = model.embed_documents(TEXTS)
check([len(vector) for vector in vectors], [64] * 3)
check([round(math.hypot(*vector), 5) for vector in vectors], [1.0] * 3)
check(model.embed_query(TEXTS[1]), vectors[1])
store = InMemoryVectorStore.from_texts(TEXTS, model)
for text in TEXTS:
    check(store.similarity_search(text, k=1)[0].page_content, text)
