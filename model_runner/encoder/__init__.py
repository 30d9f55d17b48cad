"""The encoder process: computes embeddings and scores with a model of sentence-transformers."""
