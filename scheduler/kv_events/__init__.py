"""KV events for external routers."""
