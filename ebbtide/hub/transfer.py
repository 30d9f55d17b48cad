"""Downloads one large file from the Hub. An interrupted download is resumed, and the content is verified.

An incomplete file has the SHA-256 of the complete file in its name, as in the cache of huggingface_hub, so that a
download is never continued with other content.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import StartupError

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 5  # number of consecutive connections without a new byte after which a download fails
TIMEOUT_S = 30.0  # seconds without received data after which a connection is closed
PAUSE_S = 1.0  # seconds between two connections


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file that the repository stores by its SHA-256 (Git LFS).

    Attributes:
        path: path in the repository.
        size: size in bytes.
    """

    path: str
    size: int
    sha256: str


class Transfer:
    """Downloads files to a folder of blobs.

    client: an HTTP client of huggingface_hub.
    check: raises huggingface_hub's exception for a response with an error status.
    lost: classes of the exceptions after which a download is continued.
    show: returns the progress bar of a file, given the number of bytes that are already present.
    pause_s: seconds between two connections.
    """

    def __init__(
        self,
        client: Any,
        check: Callable[[Any], None],
        lost: tuple[type[Exception], ...],
        show: Callable[[LargeFile, int], Any],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._client = client
        self._check = check
        self._lost = lost
        self._show = show
        self._pause_s = pause_s

    def fetch(self, file: LargeFile, url: str, headers: dict[str, str], blobs: Path) -> None:
        """Download the file to ``blobs`` under its SHA-256. Continues the incomplete file of an earlier call.

        Raises StartupError if the content has another SHA-256, one of the exceptions ``lost`` if the connection breaks
        repeatedly, and OSError if the file cannot be written. The incomplete file is kept unless its content is wrong.
        """
        part = blobs / f"{file.sha256}.incomplete"
        with part.open("ab") as target:
            if target.tell() > file.size:
                target.truncate(0)
            if target.tell():
                log.info("continuing %s at %d of %d bytes", file.path, target.tell(), file.size)
            with self._show(file, target.tell()) as bar:
                self._receive_all(file, url, headers, target, bar)
        _verify(file, part)
        part.replace(blobs / file.sha256)

    def _receive_all(self, file: LargeFile, url: str, headers: dict[str, str], target: BinaryIO, bar: Any) -> None:
        attempts = 0
        while (before := target.tell()) < file.size:
            try:
                self._receive(url, headers, target, bar, file.size)
                reason = "the server closed the connection"
                error: Exception | None = None
            except self._lost as lost:
                reason, error = str(lost) or type(lost).__name__, lost
            attempts = 0 if target.tell() > before else attempts + 1
            if attempts == MAX_ATTEMPTS:
                raise error or ConnectionError(reason)
            if target.tell() < file.size:
                log.warning("the download of %s was interrupted (%s); continuing it", file.path, reason)
                time.sleep(self._pause_s)

    def _receive(self, url: str, headers: dict[str, str], target: BinaryIO, bar: Any, size: int) -> None:
        """Append the bytes of one response to ``target``. Stops early if ``target`` gets longer than ``size`` bytes."""
        offset = target.tell()
        # Without "identity", a proxy could compress the file, and the range would refer to the compressed bytes.
        asked = headers | {"accept-encoding": "identity"} | ({"range": f"bytes={offset}-"} if offset else {})
        with self._client.stream("GET", url, headers=asked, follow_redirects=True, timeout=TIMEOUT_S) as response:
            self._check(response)
            if offset and response.status_code != HTTPStatus.PARTIAL_CONTENT:  # the server ignores the range
                target.truncate(0)
                bar.update(-offset)
            for chunk in response.iter_bytes():  # chunks as they arrive, so that no received byte is lost
                target.write(chunk)
                bar.update(len(chunk))
                if target.tell() > size:
                    break


def _verify(file: LargeFile, part: Path) -> None:
    with part.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    if digest != file.sha256:
        part.unlink()
        raise StartupError(
            f"The download of {file.path} is damaged: sha256 {digest} instead of {file.sha256}. Run the command again."
        )
