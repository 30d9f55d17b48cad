"""KV memory: the pool, page tables, page copies and the host tier."""
