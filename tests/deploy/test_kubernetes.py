"""The manifests agree with the daemon: routes, flags, ports, timeouts, metric names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebbtide.config import ServerConfig, WatchdogConfig
from ebbtide.server.daemon.engine import GRACE_S
from ebbtide.server.http.auth import PUBLIC_PATHS
from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, PREFIX, TOTAL_TEXTS

from .flags import parsed
from .manifests import KUBERNETES, RULE, prometheus_rule, resources

RESOURCES = resources()
ADAPTER = yaml.safe_load((KUBERNETES / "prometheus-adapter-values.yaml").read_text())
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule"}  # their schemas are not part of Kubernetes


def pod() -> dict[str, Any]:
    return dict(RESOURCES["Deployment"]["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return dict(only)


def test_every_manifest_is_part_of_the_kustomization() -> None:
    named = set(yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"])
    others = {"kustomization.yaml", "prometheus-adapter-values.yaml"}
    assert {path.name for path in KUBERNETES.iterdir()} - others == named - {"../../docs/monitoring"}


def test_the_dashboard_that_the_kustomization_loads_exists() -> None:
    folder = KUBERNETES / "../../docs/monitoring"
    (generator,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    assert [name for name in generator["files"] if not (folder / name).exists()] == []


def test_the_rules_are_those_of_the_monitoring_page() -> None:
    assert RULE.read_text() == prometheus_rule()


@pytest.mark.parametrize(
    ("probe", "path"), [("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")]
)
def test_a_probe_asks_a_route_that_needs_no_key(probe: str, path: str) -> None:
    assert container()[probe]["httpGet"] == {"path": path, "port": "http"}
    assert path in PUBLIC_PATHS


def test_a_pod_may_load_as_long_as_the_daemon_allows() -> None:
    probe = container()["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > WatchdogConfig().load_timeout


def test_a_pod_may_drain_before_it_is_killed() -> None:
    drains_s = parsed(container()["args"]).shutdown_timeout
    waits_s = float(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert drains_s > ServerConfig().shutdown_timeout
    assert pod()["terminationGracePeriodSeconds"] > waits_s + drains_s + 2 * GRACE_S


def test_the_ports_agree() -> None:
    dockerfile = (KUBERNETES.parents[1] / "Dockerfile").read_text()
    (port,) = container()["ports"]
    assert f"EXPOSE {port['containerPort']}" in dockerfile
    assert RESOURCES["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert RESOURCES["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    (endpoint,) = RESOURCES["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] == RESOURCES["Service"]["spec"]["ports"][0]["name"]
    assert endpoint["path"] in PUBLIC_PATHS


def test_every_selector_matches_the_pods_and_the_service() -> None:
    labels = RESOURCES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert RESOURCES["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert RESOURCES["Service"]["spec"]["selector"] == labels
    assert RESOURCES["Service"]["metadata"]["labels"] == labels
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        assert RESOURCES[kind]["spec"]["selector"]["matchLabels"] == labels
    assert RESOURCES["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert RESOURCES["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "ebbtide"
    assert RESOURCES["Service"]["metadata"]["name"] == "ebbtide"  # the job of the alert EbbtideDown


def test_the_container_writes_only_to_its_volumes() -> None:
    context, dockerfile = container()["securityContext"], (KUBERNETES.parents[1] / "Dockerfile").read_text()
    assert context["readOnlyRootFilesystem"] is True
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert f"USER {pod()['securityContext']['runAsUser']}" in dockerfile
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts == {"/cache", "/tmp"}
    assert "EBBTIDE_CACHE=/cache" in dockerfile
    assert {mount["name"] for mount in container()["volumeMounts"]} == {volume["name"] for volume in pod()["volumes"]}


def test_memory_is_reserved_up_to_its_limit() -> None:
    limits = container()["resources"]
    assert limits["requests"] == limits["limits"]
    (threads,) = [entry for entry in container()["env"] if entry["name"] == "OMP_NUM_THREADS"]
    assert threads["valueFrom"]["resourceFieldRef"] == {"resource": "limits.cpu"}


def adapted() -> set[str]:
    """The metrics that prometheus-adapter offers, from those that the daemon exports."""
    names = set()
    for rule in ADAPTER["rules"]["custom"]:
        pattern = re.search(r'__name__=~?"\^?([^"$]+)\$?"', rule["seriesQuery"])
        assert pattern is not None
        series = [PREFIX + name for name in (*GAUGE_TEXTS, *TOTAL_TEXTS)]
        found = [name for name in series if re.fullmatch(pattern[1], name)]
        assert len(found) == pattern[1].count("|") + 1, rule["seriesQuery"]
        matches = rule["name"].get("matches", ".*")
        names |= {re.sub(f"^{matches}$", rule["name"]["as"].replace("${1}", r"\1"), name) for name in found}
    return names


def test_the_autoscaler_reads_metrics_that_the_adapter_offers() -> None:
    wanted = {entry["pods"]["metric"]["name"] for entry in RESOURCES["HorizontalPodAutoscaler"]["spec"]["metrics"]}
    assert wanted == adapted()


@pytest.mark.soak
@pytest.mark.parametrize("kind", sorted(RESOURCES.keys() - OF_OPERATORS))
def test_kubernetes_accepts_the_manifest(kind: str, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "kubernetes-validate"
    if not program.exists():
        pytest.skip("kubernetes-validate is not installed")
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump(RESOURCES[kind]))
    checked = subprocess.run([str(program), "--strict", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
