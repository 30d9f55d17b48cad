"""Converts logits to tokens and log-probabilities."""
