"""The error formats by path, for paths that do not use OpenAI's error format."""

from __future__ import annotations

from ..http.error_replies import ErrorFormats
from .anthropic.errors import anthropic_error

ERROR_FORMATS: ErrorFormats = {"/v1/messages": anthropic_error}
