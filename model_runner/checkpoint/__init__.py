"""Checkpoints on disk: safetensors and GGUF."""
