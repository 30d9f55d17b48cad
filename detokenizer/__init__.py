"""Incremental detokenization with stop strings, one message per step."""
