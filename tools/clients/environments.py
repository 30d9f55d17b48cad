"""The environments of the clients: a virtual environment or a folder of npm packages for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ebbtide" / "clients"
INSTALL_S = 1200.0


@dataclass(frozen=True, slots=True)
class Environment:
    """The installed packages of one client.

    Attributes:
        folder: the folder of the packages.
        packages: as pip or npm names them; the first one is the client, whose version is shown.
        is_node: True if they are npm packages.
    """

    folder: Path
    packages: tuple[str, ...]
    is_node: bool

    @property
    def bin(self) -> Path:
        """The folder of the programs that the packages install."""
        return self.folder / ("node_modules/.bin" if self.is_node else "bin")

    @property
    def version(self) -> str | None:
        """The version of the client; None if it is not installed."""
        return self._node_version() if self.is_node else self._python_version()

    def install(self) -> None:
        """Install the packages. Raises CalledProcessError or TimeoutExpired."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.is_node:
            options = ["--no-audit", "--no-fund", "--no-update-notifier"]
            commands = [["npm", "install", "--prefix", str(self.folder), *options, *self.packages]]
        else:
            pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            commands = [[sys.executable, "-m", "venv", str(self.folder)], [*pip, *self.packages]]
        for command in commands:
            subprocess.run(command, check=True, timeout=INSTALL_S, capture_output=True, text=True)

    def _node_version(self) -> str | None:
        manifest = self.folder / "node_modules" / self.packages[0] / "package.json"
        return str(json.loads(manifest.read_text())["version"]) if manifest.is_file() else None

    def _python_version(self) -> str | None:
        python = self.bin / "python"
        if not python.exists():
            return None
        name = self.packages[0].partition("[")[0]
        code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        found = subprocess.run([str(python), "-c", code, name], capture_output=True, text=True, check=False)
        return found.stdout.strip() if found.returncode == 0 else None
