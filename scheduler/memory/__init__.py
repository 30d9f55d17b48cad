"""KV pages: allocation, ownership, accounting, and caches of computed prefixes."""
