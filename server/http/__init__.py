"""HTTP below the APIs: sockets, protocol limits, TLS, keys, middleware, errors and streams. Independent of the API."""
