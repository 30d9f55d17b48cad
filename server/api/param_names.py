"""Names of parameters in errors, for APIs whose requests are translated to requests of another API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ebbtide.errors import Rejected


@contextmanager
def params_named(names: Mapping[str, str]) -> Iterator[None]:
    """Replace parameter names by the client's names in the errors that the block raises.

    names: field of a ``GenerationRequest`` -> field of the client's API, for the fields whose names differ.
    """
    try:
        yield
    except Rejected as error:
        param = error.param or ""
        name = names.get(param.replace("[", ".").partition(".")[0])  # "messages[2].content" becomes "messages"
        if name is not None:
            error.message = error.message.replace(f"'{param}'", f"'{name}'")
            error.param = name
        raise
