"""Runs nginx and HAProxy with the files of deploy/, with only addresses and certificates replaced."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import trustme

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PATIENCE_S = 60.0
AS_ROOT = "user root; " if os.geteuid() == 0 else ""  # otherwise the workers cannot write into the folder
NGINX_MAIN = """
{user}daemon off; pid {folder}/nginx.pid; error_log stderr; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/ebbtide.conf;
}}
"""


@dataclass(frozen=True)
class Proxy:
    """A running proxy. url: with the prefix of the daemon. tls: trusts its certificate."""

    url: str
    tls: ssl.SSLContext
    address: tuple[str, int]

    def client(self) -> httpx.Client:
        """A client with a timeout that suits a test."""
        return httpx.Client(base_url=self.url, verify=self.tls, timeout=PATIENCE_S)


def free_port() -> int:
    """A port that is free at the time of the call."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _nginx(folder: Path, port: int, backend: str) -> list[str]:
    text = (DEPLOY / "nginx" / "ebbtide.conf").read_text()
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("127.0.0.1:8000", backend)
    (folder / "ebbtide.conf").write_text(text.replace("/etc/nginx/llm", str(folder / "llm")))
    (folder / "nginx.conf").write_text(NGINX_MAIN.format(folder=folder, user=AS_ROOT))
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def _haproxy(folder: Path, port: int, backend: str) -> list[str]:
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    text = text.replace("bind :443", f"bind 127.0.0.1:{port}").replace("127.0.0.1:8000", backend)
    (folder / "haproxy.cfg").write_text(text.replace("/etc/haproxy/llm.pem", str(folder / "both.pem")))
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


COMMANDS = {"nginx": _nginx, "haproxy": _haproxy}


def program(name: str) -> str | None:
    """The path of a proxy's program; None if it is not installed."""
    return shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@contextlib.contextmanager
def running_proxy(name: str, folder: Path, backend: str) -> Iterator[Proxy]:
    """Start the proxy ``name`` in front of ``backend``, an address with a port, until the context ends."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "llm.key"))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(folder / "llm.pem"), append=True)
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    port = free_port()
    first, *words = COMMANDS[name](folder, port, backend)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program(first) or first, *words], stdout=log, stderr=log)
    try:
        _wait_until_it_listens(process, port, folder / "log")
        yield Proxy(f"https://127.0.0.1:{port}/llm", tls, ("127.0.0.1", port))
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
