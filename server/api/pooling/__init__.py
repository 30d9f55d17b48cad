"""Embeddings and scores of documents: the routes of OpenAI, Jina and Cohere in the forms that vLLM accepts."""
