"""The parts of ``ebbtide bench``: what to send, how to send it, when to send it, and what came of it.

Nothing here knows which server answers: only the OpenAI-compatible protocol.
"""
