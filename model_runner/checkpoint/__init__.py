"""Reads checkpoints in safetensors and GGUF format: configurations and weights."""
