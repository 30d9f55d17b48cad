"""A real Prometheus scrapes a daemon under pressure and answers every query of the dashboard and of the alerts.

Uses the Prometheus on the PATH, or else Debian's package, unpacked into a temporary folder.
"""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest

from .expressions import ALERTS, alert_queries, panel_queries

pytestmark = pytest.mark.soak

FLAGS = (
    *("--max-total-tokens", "1024", "--page-size", "16", "--sim-step-ms", "2", "--context-length", "4096"),
    *("--max-queued-requests", "12", "--enable-streaming-session"),
)
NUM_CLIENTS = 24
WINDOW = "30s"
NUM_RETRACTIONS = 20
PATIENCE_S = 90.0
CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [RULES]
scrape_configs:
  - job_name: ebbtide
    static_configs: [{targets: [TARGET]}]
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with prometheus and promtool."""
    installed = shutil.which("prometheus")
    if installed is not None:
        return Path(installed).parent
    folder = tmp_path_factory.mktemp("debian")
    got = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"there is no Prometheus here: {got.stderr.splitlines()[-1]}")
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr" / "bin"


@dataclass
class Prometheus:
    """The server's API."""

    http: httpx.Client

    def values(self, query: str) -> list[float]:
        """The current values of the query, without NaN. Fails if Prometheus refuses the query."""
        reply = self.http.get("/api/v1/query", params={"query": query}).json()
        assert reply["status"] == "success", (query, reply)
        result = reply["data"]["result"]
        pairs = [result] if reply["data"]["resultType"] == "scalar" else [sample["value"] for sample in result]
        return [float(value) for _, value in pairs if not math.isnan(float(value))]

    def alerts(self) -> dict[str, dict[str, Any]]:
        """The alert rules by name, as loaded."""
        groups = self.http.get("/api/v1/rules").json()["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@pytest.fixture
def prometheus(programs: Path, daemon: Any, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the daemon every second."""
    rules = tmp_path / "rules.yml"
    rules.write_text(ALERTS.read_text())
    config = tmp_path / "prometheus.yml"
    target = daemon.url.removeprefix("http://")
    config.write_text(CONFIG.replace("RULES", str(rules)).replace("TARGET", f'"{target}"'))
    subprocess.run([programs / "promtool", "check", "config", config], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address={address}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([programs / "prometheus", *command], stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://{address}", timeout=20) as http:
        wait_for(lambda: is_ready(http))
        yield Prometheus(http)
    server.terminate()
    server.wait(30)


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def wait_for(claim: Any) -> None:
    """Poll until ``claim`` is true. Fails after PATIENCE_S seconds."""
    over = threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        over.wait(0.2)


class Load:
    """Clients that send requests until the context ends: overload, repeated prompts, some disconnects."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(index,)) for index in range(NUM_CLIENTS)]

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for client in self._clients:
            client.join()

    def _ask(self, index: int) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http:
            for turn in range(10_000):
                if self._over.is_set():
                    return
                if index == 0:
                    self._rarer(http, turn)
                prompt = f"tide {(index + turn) % 8} " * 8
                body = {"prompt": prompt, "max_tokens": 40 + 8 * index, "ignore_eos": True, "stream": index == 1}
                patience_s = 0.2 if index == 2 else 60.0
                try:
                    status = http.post("/v1/completions", json=body, timeout=patience_s).status_code
                except httpx.TimeoutException:
                    continue
                if status == 429:
                    self._over.wait(0.3)

    def _rarer(self, http: httpx.Client, turn: int) -> None:
        """Requests that only one client sends: an unknown path, a grammar, two choices."""
        http.get("/no/such/path")
        message = {"role": "user", "content": "json"}
        schema = {"type": "object", "properties": {f"a{turn}": {"type": "boolean"}}}  # each is a new grammar
        grammar = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
        http.post("/v1/chat/completions", json={"messages": [message], "response_format": grammar, "max_tokens": 40})
        http.post("/v1/completions", json={"prompt": "two", "n": 2, "max_tokens": 5})


def open_session(url: str) -> None:
    """Open a session and run one turn, so that it holds memory."""
    body = {"capacity_of_str_len": 1000, "session_id": "s", "streaming": True}
    assert httpx.post(f"{url}/open_session", json=body).status_code == 200
    turn = {"prompt": "hello " * 10, "max_tokens": 8, "session_params": {"id": "s"}}
    assert httpx.post(f"{url}/v1/completions", json=turn).status_code == 200


def exhaust(url: str) -> bool:
    """Send a request that exceeds the whole pool. True if it was admitted."""
    body = {"prompt": "b" * 500, "max_tokens": 3000, "ignore_eos": True}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert reply.json()["error"]["code"] in ("kv_cache_exhausted", "queue_full")
    return reply.status_code == 500


def left_sides(query: str) -> list[str]:
    """The query of an alert; for a comparison its left side, which must always have a value."""
    expression: Any = promql_parser.parse(query)
    compared = isinstance(expression, promql_parser.BinaryExpr) and str(expression.op) in (">", "<", "==", "!=")
    return [str(expression.lhs)] if compared else [query]


def test_the_rules_are_valid(programs: Path) -> None:
    checked = subprocess.run([programs / "promtool", "check", "rules", ALERTS], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(list(alert_queries()))} rules found" in checked.stdout


@pytest.mark.parametrize("daemon", [FLAGS], indirect=True)
def test_every_panel_and_alert_has_an_answer_under_load(prometheus: Prometheus, daemon: Any) -> None:
    wanted = dict(panel_queries(WINDOW))
    wanted |= {f"{name} ({index})": part for name, q in alert_queries() for index, part in enumerate(left_sides(q))}
    answers: dict[str, list[float]] = {}

    def all_answered() -> bool:
        for where, query in wanted.items():
            if where not in answers and (values := prometheus.values(query)):
                answers[where] = values
        return len(answers) == len(wanted)

    open_session(daemon.url)
    with Load(daemon.url):
        wait_for(lambda: prometheus.values("ebbtide:generation_tokens_total > 0"))  # so that the next shows as a rise
        wait_for(lambda: exhaust(daemon.url))
        try:
            wait_for(all_answered)
        finally:
            print("without a value:", sorted(set(wanted) - set(answers)))
        wait_for(lambda: prometheus.alerts()["EbbtideKvExhausted"]["state"] == "firing")
        wait_for(lambda: prometheus.values("sum(ebbtide:num_retracted_requests_total)")[0] > NUM_RETRACTIONS)
        moving = {
            name: prometheus.values(f"sum(rate(ebbtide:{name}[{WINDOW}]))")[0]
            for name in ("num_retracted_requests_total", "num_resumed_requests_total", "generation_tokens_total")
        }
        firing = {name for name, rule in prometheus.alerts().items() if rule["state"] == "firing"}
    print(json.dumps({"queries": len(wanted), "per second": moving, "firing": sorted(firing)}))
    assert all(value > 0 for value in moving.values())
    assert not firing & {"EbbtideDown", "EbbtideEngineGone", "EbbtideInvariantViolation", "EbbtideNoProgress"}
    for name, rule in prometheus.alerts().items():
        assert rule["health"] == "ok", (name, rule.get("lastError"))


@pytest.mark.parametrize("daemon", [FLAGS], indirect=True)
def test_the_load_of_an_idle_server_reads_zero_and_a_stopped_server_raises_the_alert(
    prometheus: Prometheus, daemon: Any
) -> None:
    with httpx.Client(base_url=daemon.url, timeout=60) as http:
        http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 20})
    wait_for(lambda: prometheus.values("ebbtide:generation_tokens_total"))
    load = "|".join(("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "token_usage", "gen_throughput"))
    wait_for(lambda: prometheus.values(f'{{__name__=~"ebbtide:({load})"}}') == [0.0] * 5)
    daemon.process.terminate()
    assert daemon.wait() == 0
    (query,) = [query for name, query in alert_queries() if name == "EbbtideDown"]
    wait_for(lambda: prometheus.values(query) == [0.0])
