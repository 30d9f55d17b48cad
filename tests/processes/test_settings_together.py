"""IPv6, HTTPS, API keys and a root path at once: every route, the official clients, the console and the commands."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import trustme

from ..conftest import Daemon, StartDaemon

KEY, ADMIN = "user-key", "admin-key"
ROOT_PATH = "/llm"
PUBLIC = {"/health", "/ready", "/health_generate", "/metrics"}  # as docs/security.md says


def has_ipv6() -> bool:
    """True if this machine has the IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@dataclass(frozen=True)
class Secured:
    """The daemon and what its clients need.

    Attributes:
        url: address with the root path.
        authority: PEM file of the certificate authority.
        http: a client without a key.
    """

    daemon: Daemon
    url: str
    authority: Path
    tls: ssl.SSLContext
    http: httpx.Client


@pytest.fixture(scope="module")
def secured(start_shared_daemon: StartDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("::1")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    daemon = start_shared_daemon(
        *("--host", "::1", "--ssl-certfile", str(folder / "server.pem"), "--root-path", ROOT_PATH),
        *("--api-key", KEY, "--admin-api-key", ADMIN, "--enable-streaming-session"),
    )
    tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    url = f"{daemon.url}{ROOT_PATH}"
    with httpx.Client(verify=tls, base_url=url, timeout=60) as client:
        yield Secured(daemon, url, folder / "ca.pem", tls, client)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_address_is_announced_with_the_scheme_and_in_brackets(secured: Secured) -> None:
    assert secured.daemon.url.startswith("https://[::1]:")


def test_every_route_is_found_with_a_key_and_refused_without(secured: Secured) -> None:
    paths = secured.http.get("/openapi.json", headers=bearer(KEY)).json()["paths"]
    assert len(paths) > 30
    public = set()
    for path, methods in paths.items():
        for method in methods:
            url = path.replace("{", "").replace("}", "")
            body: dict[str, Any] = {"json": {}} if method == "post" else {}
            refused = secured.http.request(method, url, **body)
            if refused.status_code == 401:
                assert secured.http.request(method, url, headers=bearer("wrong"), **body).status_code == 401
            else:
                public.add(path)
    assert public == PUBLIC


@pytest.mark.parametrize("prefix", ["", ROOT_PATH])
def test_paths_work_with_and_without_the_root_path(secured: Secured, prefix: str) -> None:
    """A proxy may remove the prefix or leave it."""
    for path, key in (("/v1/models", KEY), ("/metrics", ADMIN), ("/pressure", ADMIN), ("/v1/loads", ADMIN)):
        answer = secured.http.get(f"{secured.daemon.url}{prefix}{path}", headers=bearer(key))
        assert answer.status_code == 200, (path, answer.text)


def test_openais_client_completes_and_streams(secured: Secured) -> None:
    with openai.OpenAI(
        base_url=f"{secured.url}/v1", api_key=KEY, http_client=openai.DefaultHttpxClient(verify=secured.tls)
    ) as client:
        whole = client.completions.create(model="sim", prompt="tide", max_tokens=8, temperature=0)
        chunks = client.completions.create(model="sim", prompt="tide", max_tokens=8, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
        assert client.models.list().data[0].id == "sim"
        assert client.embeddings.create(model="sim", input="tide").data[0].embedding


def test_anthropics_client_gets_a_message(secured: Secured) -> None:
    with anthropic.Anthropic(
        base_url=secured.url, api_key=KEY, http_client=anthropic.DefaultHttpxClient(verify=secured.tls)
    ) as client:
        message = client.messages.create(model="sim", max_tokens=8, messages=[{"role": "user", "content": "tide"}])
    assert message.usage.output_tokens == 8


def test_a_session_keeps_its_tokens(secured: Secured) -> None:
    assert secured.http.post("/v1/sessions", json={"session_id": "tide"}, headers=bearer(KEY)).status_code == 200
    turn: dict[str, Any] = {"session_id": "tide", "prompt": "tide", "max_tokens": 4, "ignore_eos": True}
    for _ in range(2):
        assert secured.http.post("/v1/completions", json=turn, headers=bearer(KEY)).status_code == 200
    assert secured.http.get("/v1/sessions/tide", headers=bearer(KEY)).json()["num_turns"] == 2
    assert secured.http.delete("/v1/sessions/tide", headers=bearer(KEY)).status_code == 200


def test_the_console_and_its_data(secured: Secured) -> None:
    page = secured.http.get("/", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "<title>" in page.text
    assert secured.http.get("/console/events").status_code == 401
    with secured.http.stream("GET", "/console/events", headers=bearer(ADMIN)) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
    assert json.loads(line[6:])


def test_the_load_generator_reaches_the_server(secured: Secured) -> None:
    command = ["-m", "ebbtide.server.cli", "bench", "--base-url", f"{secured.url}/v1", "--api-key", KEY]
    load = ["--num-requests", "4", "--concurrency", "2", "--prompt-len", "8", "--output-len", "8"]
    result = subprocess.run(
        [sys.executable, *command, *load],
        env=os.environ | {"SSL_CERT_FILE": str(secured.authority)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
