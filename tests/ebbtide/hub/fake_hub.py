"""An HTTP server that answers as the Hub does: repository information, file tree, and files by redirect and range."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class FakeRepository:
    """Files of one revision. Files that end with a suffix of weights are stored by their SHA-256.

    Attributes:
        gate: X-Error-Code and status of a refusal of every file.
        cut_after: bytes after which each response with weights breaks off, once for every entry.
        wrong: content that is sent instead of the files' content.
        edit: changes the description of the repository; the result is sent as JSON, bytes as they are.
    """

    files: dict[str, bytes]
    gate: tuple[str, int] | None = None
    cut_after: list[int] = field(default_factory=list)
    wrong: bytes | None = None
    ignores_ranges: bool = False
    edit: Callable[[Any], Any] = lambda description: description

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        found: dict[str, Any] = {"size": len(content), "blobId": blob, "oid": blob}
        if path.endswith((".gguf", ".safetensors")):
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"size": len(content), "sha256": digest, "oid": digest, "pointerSize": 134}
        return found

    def etag(self, path: str) -> str:
        entry = self.entry(path)
        return str(entry.get("lfs", {}).get("sha256") or entry["oid"])


class FakeHub:
    """A server on a free port of the loopback interface.

    Attributes:
        repositories: by OWNER/NAME.
        requests: method, path and Range header of every request.
        tokens: Authorization headers that were sent to the Hub.
        cdn_tokens: those that were sent to the host of the files.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, FakeRepository] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.tokens: list[str | None] = []
        self.cdn_tokens: list[str | None] = []
        hub = self

        class Handler(_Handler):
            fake = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def gets_of(self, path: str) -> list[str | None]:
        """The Range headers of the downloads of a file."""
        return [wanted for method, asked, wanted in self.requests if method == "GET" and asked == f"/cdn/{path}"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fake.requests.append((self.command, path, self.headers.get("range")))
        is_cdn = path.startswith("/cdn/")
        (self.fake.cdn_tokens if is_cdn else self.fake.tokens).append(self.headers.get("authorization"))
        parts = re.fullmatch(r"/(api/models|cdn)?/?([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+))?(?:/(.+))?", path)
        repository = self.fake.repositories.get(parts[2]) if parts else None
        if parts is None or repository is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif parts[1] == "api/models":
            self._describe(parts[2], repository, is_tree=parts[3] == "tree")
        elif repository.gate is not None:
            self._send(repository.gate[1], b"", {"X-Error-Code": repository.gate[0]})
        elif parts[5] not in repository.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif parts[1] == "cdn":
            self._deliver(repository, parts[5])
        else:
            self._redirect(repository, parts[2], parts[5])

    def _describe(self, name: str, repository: FakeRepository, *, is_tree: bool) -> None:
        entries = [(path, repository.entry(path)) for path in repository.files]
        if is_tree:
            value: Any = [{"type": "file", "path": path, **entry} for path, entry in entries]
        else:
            siblings = [{"rfilename": path, **entry} for path, entry in entries]
            value = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            value = repository.edit(value)
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._send(200, body, {"Content-Type": "application/json"})

    def _redirect(self, repository: FakeRepository, name: str, path: str) -> None:
        headers = {
            "Location": f"{self.fake.url.replace('127.0.0.1', 'localhost')}/cdn/{name}/{path}",  # another host
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(repository.files[path])),
            "X-Linked-Etag": f'"{repository.etag(path)}"',
            "ETag": f'"{repository.etag(path)}"',
        }
        self._send(302, b"", headers)

    def _deliver(self, repository: FakeRepository, path: str) -> None:
        content = repository.files[path] if repository.wrong is None else repository.wrong
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        first = int(start[1]) if start and not repository.ignores_ranges else 0
        body, headers = content[first:], {"ETag": f'"{repository.etag(path)}"'}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if "lfs" in repository.entry(path) and repository.cut_after:
            length, body = len(body), body[: repository.cut_after.pop(0)]
            self._send(206 if first else 200, body, headers, length=length)
            self.close_connection = True
        else:
            self._send(206 if first else 200, body, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
