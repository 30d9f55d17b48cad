"""The parts of ``ebbtide bench``: workload, client, pacing, and report.

They depend only on the OpenAI-compatible API, not on a specific server.
"""
