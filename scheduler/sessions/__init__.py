"""Streaming and tree sessions: committed tokens, turns and quotas."""
