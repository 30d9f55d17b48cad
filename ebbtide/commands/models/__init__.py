"""Commands about the models on this machine's disk."""
