"""Tokenizers, chat templates, vocabularies, and the location of model files."""
