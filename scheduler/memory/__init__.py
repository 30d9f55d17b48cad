"""Pages: who holds them, who may take them, and which computed ones can be used again."""
