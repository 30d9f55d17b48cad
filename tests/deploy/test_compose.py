"""The compose file: mounted files exist, ports and names agree, the drain has time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .flags import parsed

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def mounts() -> dict[str, Path]:
    """The files that are mounted into the containers, by their path there."""
    volumes = [volume for service in SERVICES.values() for volume in service["volumes"] if volume.startswith(".")]
    return {volume.split(":")[1]: (FOLDER / volume.split(":")[0]).resolve() for volume in volumes}


def test_mounted_files_exist_and_shared_ones_are_not_copied() -> None:
    assert [path for path in mounts().values() if not path.is_file()] == []
    assert {path.name for path in mounts().values() if path.parent.name == "monitoring"} == {
        "ebbtide-alerts.yml",
        "ebbtide-dashboard.json",
    }


def test_prometheus_scrapes_the_daemon_and_loads_the_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "ebbtide"  # the job of the alert EbbtideDown
    assert job["static_configs"] == [{"targets": ["ebbtide:8000"]}]
    assert [f"/etc/prometheus/{name}" in mounts() for name in config["rule_files"]] == [True]


def test_grafana_reads_prometheus_and_the_mounted_dashboard() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana-datasource.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((FOLDER / "grafana-dashboards.yml").read_text())["providers"]
    dashboard = mounts()[f"{provider['options']['path']}/ebbtide-dashboard.json"]
    variables = json.loads(dashboard.read_text())["templating"]["list"]
    assert any(variable.get("query") == "prometheus" for variable in variables if variable["type"] == "datasource")


def test_the_daemon_may_drain_and_writes_only_to_its_volumes() -> None:
    daemon = SERVICES["ebbtide"]
    assert float(daemon["stop_grace_period"].removesuffix("s")) > parsed(daemon["command"]).shutdown_timeout + 10
    assert daemon["read_only"] is True
    assert (daemon["volumes"], daemon["tmpfs"]) == (["models:/cache"], ["/tmp"])


@pytest.mark.soak
def test_the_schema_of_compose_accepts_the_file() -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, str(FOLDER / "compose.yaml")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.soak
def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    for path in mounts().values():
        shutil.copy(path, tmp_path)
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
