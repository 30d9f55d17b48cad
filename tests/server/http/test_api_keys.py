"""API keys from flags, environment and file, and their masking in the process list."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ebbtide.config import AccessConfig, LimitsConfig
from ebbtide.errors import StartupError
from ebbtide.server.http.api_keys import check_use_of_keys, masked, no_auth_warning, with_all_keys


def test_keys_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nthree\n\n  four  \n")
    environ = {"EBBTIDE_API_KEY": "two one", "EBBTIDE_ADMIN_API_KEY": "root", "HOME": "/"}
    config = with_all_keys(AccessConfig(api_key=("one",), api_key_file=str(path)), environ)
    assert config.api_key == ("one", "two", "three", "four")
    assert config.admin_api_key == "root"
    assert environ == {"HOME": "/"}, "children need no keys"


def test_an_empty_variable_means_no_key() -> None:
    config = with_all_keys(AccessConfig(), {"EBBTIDE_API_KEY": " ", "EBBTIDE_ADMIN_API_KEY": ""})
    assert (config.api_key, config.admin_api_key) == ((), None)


def test_the_flag_overrides_the_variable() -> None:
    assert with_all_keys(AccessConfig(admin_api_key="a"), {"EBBTIDE_ADMIN_API_KEY": "b"}).admin_api_key == "a"


@pytest.mark.parametrize(
    "config", [{"api_key": ("",)}, {"api_key": ("a b",)}, {"api_key": ("ключ",)}, {"admin_api_key": ""}]
)
def test_a_key_that_no_header_can_carry_is_refused_at_start(config: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="visible ASCII"):
        with_all_keys(AccessConfig(**config), {})


def test_the_admin_key_must_differ_from_the_api_keys() -> None:
    with pytest.raises(StartupError, match="admin key"):
        with_all_keys(AccessConfig(api_key=("a",), admin_api_key="a"), {})


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe"])
def test_a_key_file_without_keys_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match="key file"):
        with_all_keys(AccessConfig(api_key_file=str(path)), {})


def test_per_key_settings_require_keys() -> None:
    for access, limits in ((AccessConfig(isolate_keys=True), {}), (AccessConfig(), {"max_requests_per_key": 2})):
        with pytest.raises(StartupError, match="requires API keys"):
            check_use_of_keys(access, LimitsConfig(**limits))
        check_use_of_keys(replace(access, api_key=("a",)), LimitsConfig(**limits))
    check_use_of_keys(AccessConfig(), LimitsConfig())


@pytest.mark.parametrize(
    ("address", "warns"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("192.0.2.1", True)]
)
def test_no_keys_on_a_public_address_gives_a_warning(address: str, warns: bool) -> None:
    assert (no_auth_warning(AccessConfig(), address) is not None) == warns
    assert no_auth_warning(AccessConfig(api_key=("a",)), address) is None


def test_secrets_are_masked_in_both_forms_of_a_flag() -> None:
    assert masked(["serve", "--port", "1"]) is None
    words = ["serve", "--api-key", "s3cret", "--port", "1", "--admin-api-key=s3cret", "--api-key-file", "k"]
    assert masked(words) == "serve --api-key '***' --port 1 '--admin-api-key=***' --api-key-file k"


def test_no_repr_of_the_configuration_has_a_key() -> None:
    assert "s3cret" not in repr(AccessConfig(api_key=("s3cret",), admin_api_key="s3cret"))


def test_a_daemon_requires_its_keys_and_never_shows_them(start_daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("S3CRET-FLAG", "S3CRET-ENV", "S3CRET-ADMIN")
    monkeypatch.setenv("EBBTIDE_API_KEY", secrets[1])
    daemon = start_daemon("--api-key", secrets[0], "--admin-api-key", secrets[2], "--log-level", "debug")
    with httpx.Client(base_url=daemon.url) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/ready").status_code == 200
        for key in secrets:
            headers = {"authorization": f"Bearer {key}"}
            assert client.post("/v1/completions", json={"prompt": "x"}, headers=headers).status_code == 200
        shown = client.get("/metrics").text + client.get("/openapi.json", headers=headers).text
    dump = subprocess.run(
        [sys.executable, "-m", "ebbtide.server.cli", "dump", "--pid", str(daemon.process.pid)],
        env=os.environ | {"TMPDIR": str(daemon.tmp)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "scheduler" in dump.stdout
    for pid in daemon.pids.values():
        process = psutil.Process(pid)
        shown += " ".join(process.cmdline()) + process.name()
        if pid != daemon.process.pid:
            shown += str(process.environ())
    assert "without API keys" not in daemon.log
    assert psutil.Process(daemon.process.pid).cmdline()[0].startswith("ebbtide serve sim")
    assert not [key for key in secrets if key in shown + daemon.log + dump.stdout + dump.stderr]
