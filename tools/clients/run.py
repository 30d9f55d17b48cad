"""Runs unmodified clients against a daemon with scripted answers: ``run.py [--install] [NAME …]``.

Each client has its own environment. Without ``--install``, a client that is not installed is skipped. Prints a table.
Ends with 1 if a client failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from answers import COMMON, EXPECTED
from client_table import CLIENTS, Client
from environments import DEFAULT_FOLDER, Environment
from sim_daemon import sim_daemon

HERE = Path(__file__).resolve().parent
RUN_S = 300.0
# Clients must not use the network, because a test must not depend on it.
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "CI": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a client's run. fault: "" if it passed. skipped: the reason why it did not run; "" if it ran."""

    name: str
    version: str = "–"
    skipped: str = ""
    fault: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The outcome in one line."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        return f"failed: {self.fault}" if self.fault else f"passed in {self.seconds:.0f} s"


def run_client(client: Client, folder: Path, *, installs: bool = False) -> Outcome:
    """Run one client, after its installation if it is missing and ``installs`` is true."""
    environment = Environment(folder / client.name, client.packages, is_node=client.is_node)
    version = environment.version
    if version is None and not installs:
        return Outcome(client.name, skipped=f"not installed; tools/clients/run.py --install {client.name} installs it")
    if version is None:
        try:
            environment.install()
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return Outcome(client.name, skipped=f"cannot be installed: {said[-1] if said else error}")
        version = environment.version or "?"
    return _run(client, environment, version)


def _run(client: Client, environment: Environment, version: str) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="client-", ignore_cleanup_errors=True) as home:
        log = Path(home) / "daemon.log"
        started = time.monotonic()
        with sim_daemon([*client.rules, *COMMON], client.flags, log) as url:
            try:
                done = subprocess.run(
                    _command(client, environment),
                    env=_variables(client, environment, url, home),
                    cwd=home,
                    timeout=RUN_S,
                    capture_output=True,
                    text=True,
                    check=False,
                    stdin=subprocess.DEVNULL,
                )
                fault = "" if done.returncode == 0 else _fault(done.stdout + done.stderr)
            except subprocess.TimeoutExpired as error:
                fault = f"no end within {RUN_S:.0f} s: {str(error.stderr or error.stdout or '')[-300:]}"
        return Outcome(client.name, version, fault=fault, seconds=time.monotonic() - started)


def _command(client: Client, environment: Environment) -> list[str]:
    script = HERE / client.script
    if script.suffix == ".mjs":  # node looks for packages in the folder of the script
        return ["node", shutil.copy(script, environment.folder)]
    return [sys.executable if client.is_node else str(environment.bin / "python"), str(script)]


def _variables(client: Client, environment: Environment, url: str, home: str) -> dict[str, str]:
    """Return the environment variables of the client's process, which inherits only the search path."""
    own = {
        "PATH": f"{environment.bin}:{os.environ['PATH']}",
        "HOME": home,
        "EBBTIDE_URL": url,
        "EBBTIDE_EXPECTED": json.dumps(EXPECTED),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": url,
    }
    return own | QUIET | dict(client.variables)


def _fault(said: str) -> str:
    """Return the last line with text, and the path of the complete output."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    with tempfile.NamedTemporaryFile("w", prefix="client-", suffix=".log", delete=False) as file:
        file.write(said)
    return f"{lines[-1][:300] if lines else 'no output'} (output in {file.name})"


def main() -> int:
    """Run the clients named on the command line, or all clients if none is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CLIENTS))
    parser.add_argument("--install", action="store_true", help="install the clients that are missing")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help=f"the environments ({DEFAULT_FOLDER})")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in CLIENTS]
    if unknown:
        parser.error(f"no client is called {', '.join(unknown)}")
    outcomes = []
    for name in options.names or CLIENTS:
        outcome = run_client(CLIENTS[name], options.folder, installs=options.install)
        outcomes.append(outcome)
        print(f"| {outcome.name:16} | {outcome.version:10} | {outcome.text} |", flush=True)
    return any(outcome.fault for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
