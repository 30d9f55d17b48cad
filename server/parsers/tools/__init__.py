"""Parsers of tool calls, one per format, and the table of formats."""
