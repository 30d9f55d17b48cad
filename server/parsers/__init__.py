"""Parsers of model output: reasoning, tool calls and what a chat template uses."""
