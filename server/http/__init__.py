"""HTTP below the APIs: sockets, protocol limits, TLS, keys, middleware, errors and streams. Knows no API."""
