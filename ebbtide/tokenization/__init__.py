"""Tokenizers, vocabularies and model files."""
