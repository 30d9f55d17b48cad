"""Structured output: converts the constraints of requests to grammars."""
