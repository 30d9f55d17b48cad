"""The encoder process, which computes embeddings and scores with a sentence-transformers model."""
