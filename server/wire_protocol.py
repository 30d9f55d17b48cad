"""What is no HTTP is refused in the same words as everything else: below the application there is no envelope."""

from __future__ import annotations

import json
import secrets

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ebbtide.errors import Rejected

from .error_replies import envelope


class WireProtocol(HttpToolsProtocol):
    """uvicorn's parser with our words for a request that it cannot read."""

    def send_400_response(self, msg: str) -> None:
        """Answer and close: where the next request begins is anybody's guess."""
        body = json.dumps(envelope(Rejected(f"This is not an HTTP request that the server can read: {msg}"))).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {secrets.token_hex(16)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
