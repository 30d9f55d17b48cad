"""Parsers for tool calls, and the table of formats."""
