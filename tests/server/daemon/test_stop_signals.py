import asyncio
import signal
from collections.abc import Iterator

import pytest

from ebbtide.server.daemon.stop_signals import StopSignals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_before_the_loop_a_signal_raises_system_exit(number: signal.Signals) -> None:
    StopSignals().install()
    with pytest.raises(SystemExit) as end:
        signal.raise_signal(number)
    assert end.value.code == 0


def test_on_the_loop_first_and_second_signal_are_distinguished() -> None:
    async def scene() -> None:
        signals = StopSignals()
        signals.install()
        signals.attach(asyncio.get_running_loop())
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(signals.first.wait(), 5)
        assert not signals.second.is_set()
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(signals.second.wait(), 5)
        signal.raise_signal(signal.SIGINT)

    asyncio.run(scene())


def test_after_the_loop_signals_are_ignored() -> None:
    signals = StopSignals()
    signals.install()

    async def attach() -> None:
        signals.attach(asyncio.get_running_loop())

    asyncio.run(attach())
    signal.raise_signal(signal.SIGTERM)


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    StopSignals().install()
    signal.raise_signal(signal.SIGHUP)
