"""A load as a list of requests, and its file format. The requests contain lengths, but no tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from ...errors import StartupError

Tokens = Annotated[int, msgspec.Meta(ge=1)]


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a load: one line of a trace file.

    Attributes:
        output_len: number of output tokens if no limit truncates the output.
        prefix_id: requests with the same id share their first ``prefix_len`` tokens; None for no shared prefix.
        max_tokens: the client's limit; None for the limit that the context and the pool set.
        account: with --schedule-policy fair, the accounts take turns, as API keys do in the server.
        leaves_s: seconds after its arrival at which the client disconnects; None if it stays.
    """

    arrival_s: Annotated[float, msgspec.Meta(ge=0)]
    prompt_len: Tokens
    output_len: Tokens
    prefix_id: str | int | None = None
    prefix_len: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_tokens: Tokens | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    leaves_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    account: str = ""

    @property
    def num_outputs(self) -> int:
        """Number of output tokens if the request completes."""
        return self.output_len if self.max_tokens is None else min(self.output_len, self.max_tokens)


def read_trace(path: Path) -> list[TraceRequest]:
    """Return the requests of a JSON Lines file in order of arrival.

    Raises a StartupError that names the invalid line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StartupError(f"The trace {path} could not be read: {error.strerror}.") from error
    requests = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise StartupError(f"The trace {path} has no requests.")
    return sorted(requests, key=lambda request: request.arrival_s)


def _parse(line: bytes, where: str) -> TraceRequest:
    try:
        request = msgspec.json.decode(line, type=TraceRequest)
    except msgspec.DecodeError as error:
        raise StartupError(f"{where}: {error}.") from error
    if request.prefix_len > request.prompt_len:
        raise StartupError(f"{where}: prefix_len {request.prefix_len} is more than prompt_len {request.prompt_len}.")
    if request.prefix_len and request.prefix_id is None:
        raise StartupError(f"{where}: prefix_len needs a prefix_id.")
    return request
