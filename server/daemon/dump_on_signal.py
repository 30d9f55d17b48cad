"""Makes SIGUSR1 write dumps of the front process and its child processes."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from typing import TYPE_CHECKING

from ebbtide.runtime.stacks import write_dump

from .engine import Engine
from .front_dump import front_dump

if TYPE_CHECKING:
    from ..frontend import Frontend


def dump_on_signal(front: Frontend, engine: Engine) -> None:
    """Install the signal handler on the running event loop. If the loop hangs, the signal still writes all stacks."""
    faulthandler.unregister(signal.SIGUSR1)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _dump, front, engine)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)


def _dump(front: Frontend, engine: Engine) -> None:
    engine.request_dumps()
    text = front_dump("dump on demand", front.describe())
    write_dump(text, path=str(engine.dump_path("front")))
