"""The Prometheus registry and its sources."""
