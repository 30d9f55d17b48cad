import asyncio
import io
import logging

import httpx
import pytest
from starlette.responses import PlainTextResponse

from ebbtide.config import AccessConfig
from ebbtide.server.daemon.loading import AppSwitch, ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def app_switch() -> AppSwitch:
    return AppSwitch()


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def _get(app_switch: AppSwitch, path: str, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app_switch), base_url="http://app_switch") as client:
        return await client.get(path, headers=headers)


def get(app_switch: AppSwitch, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return asyncio.run(_get(app_switch, path, headers or {}))


def test_while_loading_it_is_alive_but_not_ready(app_switch: AppSwitch) -> None:
    assert get(app_switch, "/health").status_code == 200
    for path in ("/ready", "/v1/models", "/v1/chat/completions"):
        reply = get(app_switch, path)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "loading"
        assert reply.headers["retry-after"] == "5"


def test_a_browser_gets_a_page_that_reloads_itself_and_shows_the_step() -> None:
    app_switch = AppSwitch(AccessConfig(root_path="/llm"), lambda: "Reading <the> weights")
    for path in ("/", "/llm", "/llm/"):
        page = get(app_switch, path, BROWSER)
        assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
        assert '<meta http-equiv="refresh" content="2">' in page.text
        assert "Reading &lt;the&gt; weights …" in page.text
        assert get(app_switch, path).json()["error"]["code"] == "loading"
    assert get(app_switch, "/v1/models", BROWSER).json()["error"]["code"] == "loading"


def test_a_server_without_a_console_has_no_page_either() -> None:
    app_switch = AppSwitch(AccessConfig(disable_console=True))
    assert get(app_switch, "/", BROWSER).json()["error"]["code"] == "loading"


def test_after_the_switch_every_request_goes_to_the_application(app_switch: AppSwitch) -> None:
    app_switch.switch_to(PlainTextResponse("hello"))
    assert get(app_switch, "/ready").text == "hello"


def test_progress_is_plain_lines_without_a_terminal() -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for text in ("Loading", "Loading", "Wei\x1bghts"):
        line.show(text)
    line.clear()
    assert out.getvalue() == "Loading\nWeights\n"


def test_a_share_is_a_bar_on_a_terminal() -> None:
    out = Terminal()
    line = ProgressLine(out)
    line.show("Weights", 0.5)
    line.show("Weights", 0.5)
    line.show("Weights", 1.0)
    bars = out.getvalue().split("\r\x1b[2K")[1:]
    assert bars == [f"Weights [{'█' * 12}{' ' * 12}]  50%", f"Weights [{'█' * 24}] 100%"]
    assert line.step == "Weights: 100%"


def test_a_share_adds_no_lines_without_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ebbtide")
    out = io.StringIO()
    for line in (ProgressLine(out), ProgressLine(out, logs=True)):
        line.show("Weights")
        for percent in range(100):
            line.show("Weights", percent / 100)
    assert out.getvalue() == "Weights\n"
    assert [record.getMessage() for record in caplog.records] == ["Weights"]


def test_progress_is_one_line_on_a_terminal_and_then_cleared() -> None:
    out = Terminal()
    line = ProgressLine(out)
    line.show("Loading")
    line.show("Weights")
    line.clear()
    assert out.getvalue() == "\r\x1b[2KLoading …\r\x1b[2KWeights …\r\x1b[2K"


def test_progress_is_logged_with_json_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ebbtide")
    out = io.StringIO()
    line = ProgressLine(out, logs=True)
    for text in ("weights", "weights", "cache"):
        line.show(text)
    line.clear()
    assert [record.getMessage() for record in caplog.records] == ["weights", "cache"]
    assert out.getvalue() == ""
