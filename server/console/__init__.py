"""The console: a page at / that shows memory pressure live, and the routes that feed it."""
