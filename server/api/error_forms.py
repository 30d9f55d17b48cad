"""The error forms of paths that do not use OpenAI's."""

from __future__ import annotations

from ..http.error_replies import ErrorForms
from .anthropic.errors import anthropic_error

ERROR_FORMS: ErrorForms = {"/v1/messages": anthropic_error}
