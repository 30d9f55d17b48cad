"""Traces of requests for OpenTelemetry. ``opening`` imports the modules that need the SDK, and only if it is used."""
