"""Anthropic's routes: messages and their token count."""
