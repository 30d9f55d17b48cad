"""Parsers for model output (reasoning and tool calls), and probing of chat templates."""
