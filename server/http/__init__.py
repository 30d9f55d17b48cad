"""The HTTP layer: sockets, protocol limits, TLS, keys, middleware, errors and streams.

The package does not depend on any API.
"""
