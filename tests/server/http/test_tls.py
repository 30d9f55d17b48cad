"""HTTPS with certificates of a test authority."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from ebbtide.config import AccessConfig
from ebbtide.errors import StartupError
from ebbtide.server.http.tls import Tls, tls_from


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> Path:
    """Return a folder with cert.pem, key.pem, both.pem and ca.pem."""
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path


def config(files: Path, cert: str = "cert.pem", key: str | None = "key.pem", **more: Any) -> AccessConfig:
    return AccessConfig(ssl_certfile=str(files / cert), ssl_keyfile=None if key is None else str(files / key), **more)


def test_without_flags_there_is_no_tls() -> None:
    assert tls_from(AccessConfig()) is None


def test_key_and_certificate_may_be_in_one_file(files: Path) -> None:
    assert tls_from(config(files, "both.pem", None)) is not None


def test_an_invalid_certificate_is_refused_with_one_sentence(files: Path, authority: trustme.CA) -> None:
    other = authority.issue_cert("other")
    other.private_key_pem.write_to_path(files / "other.pem")
    (files / "noise.pem").write_text("noise")
    wrong = [
        AccessConfig(ssl_keyfile=str(files / "key.pem")),
        AccessConfig(ssl_ca_certs=str(files / "ca.pem")),
        config(files, "missing.pem"),
        config(files, key="missing.pem"),
        config(files, key="other.pem"),
        config(files, "noise.pem"),
        config(files, "cert.pem", None),
        config(files, ssl_ca_certs=str(files / "noise.pem")),
        config(files, ssl_ca_certs=str(files / "missing.pem")),
    ]
    for case in wrong:
        with pytest.raises(StartupError, match=r"certificate.*\.$"):
            tls_from(case)


def test_an_encrypted_key_needs_its_password(files: Path) -> None:
    key = serialization.load_pem_private_key((files / "key.pem").read_bytes(), password=None)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open sesame"),
    )
    (files / "locked.pem").write_bytes(pem)
    assert tls_from(config(files, key="locked.pem", ssl_keyfile_password="open sesame")) is not None
    for password in (None, "wrong"):
        with pytest.raises(StartupError, match="certificate"):
            tls_from(config(files, key="locked.pem", ssl_keyfile_password=password))


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(files: Path, authority: trustme.CA) -> None:
    tls = Tls(config(files))
    assert not tls.reload_if_changed()
    renewed = authority.issue_cert("127.0.0.1")
    _replace(files / "cert.pem", renewed.cert_chain_pems[0].bytes())
    assert not tls.reload_if_changed(), "its key is still the old one"
    assert not tls.reload_if_changed()
    _replace(files / "key.pem", renewed.private_key_pem.bytes())
    assert tls.reload_if_changed()
    (files / "cert.pem").unlink()
    assert not tls.reload_if_changed()


def test_a_daemon_serves_https_and_asks_for_client_certificates(
    start_daemon: Any, files: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--ssl-certfile", str(files / "cert.pem"), "--ssl-keyfile", str(files / "key.pem"))
    daemon = start_daemon(*flags, "--ssl-ca-certs", str(files / "ca.pem"))
    assert daemon.url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(files / "ca.pem"))
    with httpx.Client(verify=trusting, base_url=daemon.url) as stranger, pytest.raises(httpx.TransportError):
        stranger.get("/health")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(files / "client.pem")
    trusting.load_cert_chain(files / "client.pem")
    with httpx.Client(verify=trusting, base_url=daemon.url) as client:
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def _replace(path: Path, content: bytes) -> None:
    """Replace a file as renewal tools do, with a different modification time even on a coarse clock."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.utime(fresh, ns=(1, path.stat().st_mtime_ns + 1))
    shutil.move(fresh, path)
