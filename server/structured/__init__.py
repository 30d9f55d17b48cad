"""Structured output: constraints of requests, converted to grammars."""
