"""Structured output: constraints of a request, as grammars."""
