"""Embeddings and scores of documents: the routes of OpenAI, Jina and Cohere, in the formats that vLLM accepts."""
