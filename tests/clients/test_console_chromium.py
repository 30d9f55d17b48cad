"""The console in Chromium (Debian's package ``chromium``), driven by Playwright. Skipped without Chromium."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from ..conftest import Daemon, StartDaemon

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
]

PRESSED = ("--sim-step-ms", "20", "--max-total-tokens", "1024", "--schedule-conservativeness", "0.3")
MORE = ("--enable-streaming-session", "--max-running-requests", "16")
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a page and fail if a script has failed or the policy has blocked something."""
    problems: list[str] = []
    contexts = []

    def open_at(url: str, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": 1360, "height": 900}, ignore_https_errors=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(90_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    # A refused key is an answer with an error status, which the browser reports too.
    assert [text for text in problems if "status of 401" not in text] == []


@pytest.fixture(scope="module")
def pressed(start_shared_daemon: StartDaemon) -> Iterator[Daemon]:
    """A daemon whose pool is too small for the requests that run while the tests of this file run."""
    daemon = start_shared_daemon(*PRESSED, *MORE)
    stop = threading.Event()

    def load(number: int) -> None:
        with httpx.Client(base_url=daemon.url, timeout=60) as client:
            while not stop.is_set():
                fields = {"max_tokens": 150 + 10 * number, "ignore_eos": True, "prompt": f"{number} " * 20}
                client.post("/v1/completions", json=fields).raise_for_status()

    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(load, number) for number in range(12)]
        yield daemon
        stop.set()
    for future in running:
        future.result()


def wait_for_data(page: Page) -> None:
    page.wait_for_selector("body[data-snapshot]")


def check_accessibility(page: Page) -> None:
    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()


def test_the_bars_add_up_to_the_pool_under_pressure(pressed: Daemon, open_page: OpenPage) -> None:
    page = open_page(pressed.url)
    page.wait_for_selector("#events li")
    for _ in range(20):
        parts = page.eval_on_selector_all(".part", "parts => parts.map(part => Number(part.dataset.tokens))")
        assert sum(parts) == 1024
        assert page.inner_text(".balance") == "The parts add up to 1,024"
        page.wait_for_timeout(100)
    page.wait_for_selector("#requests tbody tr:nth-child(12)")
    page.click("#map-button")
    expect(page.locator("#map caption")).to_have_text("Largest holders in pool full")
    for key in ("pool", "tokens", "requests", "latency"):
        assert page.locator(f"[data-chart={key}] canvas").count() == 1
    expect(page.locator("[data-tile=first_token] .value")).to_have_text(re.compile(r"\d"), timeout=60_000)


def test_an_event_appears_within_a_second_and_shows_its_victims(pressed: Daemon, open_page: OpenPage) -> None:
    page = open_page(pressed.url)
    page.wait_for_selector("#events li")
    page.evaluate(
        """() => {
            window.seen = {};
            new MutationObserver(() => {
                const time = document.querySelector("#events .time").textContent;
                window.seen[time] ??= Date.now() / 1000;
            }).observe(document.querySelector("#events"), {childList: true, subtree: true});
        }"""
    )
    deadline = time.monotonic() + 60
    while len(seen := page.evaluate("window.seen")) < 3:  # the policy of the page forbids wait_for_function
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    events = httpx.get(f"{pressed.url}/pressure").json()["events"]
    for at in list(seen.values())[1:]:  # the first list may still be the old one
        assert any(-0.2 <= at - event["time"] <= 1.0 for event in events)
    page.locator("#events li button").last.click()
    expect(page.locator("#event-detail caption")).to_have_text("Victims; sizes in tokens")
    victims = {victim["rid"] for event in events for victim in event["victims"]}
    assert set(page.locator("#event-detail tbody th").all_inner_texts()) & victims


def test_a_request_is_aborted_by_two_clicks_and_not_by_one(
    start_shared_daemon: StartDaemon, open_page: OpenPage
) -> None:
    daemon = start_shared_daemon("--sim-step-ms", "50")
    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": "long", "max_tokens": 5000, "ignore_eos": True}
        asked = pool.submit(httpx.post, f"{daemon.url}/v1/completions", json=body, timeout=120)
        page = open_page(daemon.url)
        button = page.get_by_role("button", name=re.compile("Abort request"))
        button.click()
        expect(button).to_have_text("Really?")
        assert not asked.done()
        button.click()
        assert asked.result().status_code == 499
    expect(page.locator("#notice")).to_contain_text("was aborted")
    expect(page.locator("#requests .empty")).to_be_visible()


def test_a_chat_streams_and_its_curl_command_is_the_request(
    start_shared_daemon: StartDaemon, open_page: OpenPage
) -> None:
    daemon = start_shared_daemon("--sim-step-ms", "50")
    page = open_page(f"{daemon.url}/#chat")
    wait_for_data(page)
    page.fill("[name=seed]", "7")
    page.fill("[name=max_tokens]", "30")
    page.fill("[name=system]", "It's <b>bold</b>")
    page.fill("#prompt", "<img src=x onerror=alert(1)> hello")
    assert "It'\\''s <b>bold</b>" in page.locator("#curl").text_content()  # type: ignore[operator]
    with page.expect_request("**/v1/chat/completions") as sent:
        page.press("#prompt", "Enter")
    body: Any = sent.value.post_data_json
    assert (body["seed"], body["max_tokens"], body["stream"]) == (7, 30, True)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    lengths = set()
    while page.is_visible("#stop"):
        lengths.add(len(page.locator(".assistant .text").text_content() or ""))
        page.wait_for_timeout(30)
    assert len(lengths) > 2, "the answer did not grow"
    assert page.locator(".user .text").text_content() == "<img src=x onerror=alert(1)> hello"
    assert page.locator(".messages img").count() == 0
    assert "output token" in page.inner_text("#chat-stats")


def test_a_key_is_asked_for_and_a_wrong_one_is_refused(start_shared_daemon: StartDaemon, open_page: OpenPage) -> None:
    daemon = start_shared_daemon("--api-key", "user-key", "--admin-api-key", "admin-key")
    page = open_page(daemon.url)
    expect(page.locator("#key-dialog")).to_be_visible()
    expect(page.locator("#key-error")).to_be_empty()
    check_accessibility(page)
    page.fill("#key-input", "wrong")
    page.press("#key-input", "Enter")
    expect(page.locator("#key-error")).to_have_text("The server did not accept this key.")
    page.fill("#key-input", "user-key")
    page.press("#key-input", "Enter")
    wait_for_data(page)
    expect(page.locator("#status-text")).to_have_text("Ready")
    expect(page.locator("#map-button")).to_be_disabled()
    page.reload()
    wait_for_data(page)  # the tab keeps the key
    assert page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert "user-key" not in (page.locator("#curl").text_content() or "")
    page.click("#key-button")
    page.fill("#key-input", "admin-key")
    page.press("#key-input", "Enter")
    expect(page.locator("#map-button")).to_be_enabled()


def test_the_console_works_below_a_root_path(start_shared_daemon: StartDaemon, open_page: OpenPage) -> None:
    daemon = start_shared_daemon("--root-path", "/llm")
    for path in ("/llm/", "/llm", "/"):
        page = open_page(daemon.url + path)
        wait_for_data(page)
        expect(page.locator("#status-text")).to_have_text("Ready")
    assert "/llm/v1/chat/completions" in (page.locator("#curl").text_content() or "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["memory", "sessions", "chat"])
def test_no_accessibility_rule_is_broken(pressed: Daemon, open_page: OpenPage, scheme: str, view: str) -> None:
    httpx.post(f"{pressed.url}/v1/sessions", json={"session_id": f"{scheme}-{view}"}).raise_for_status()
    page = open_page(f"{pressed.url}/#{view}", color_scheme=scheme)
    wait_for_data(page)
    if view == "memory":
        page.locator("#events li button").last.click()
        page.click("#map-button")
        page.wait_for_selector("#map caption")
    if view == "chat":
        page.click(".code summary")
    check_accessibility(page)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) == (scheme == "dark")
    page.select_option("#theme", "light" if scheme == "dark" else "dark")
    check_accessibility(page)
    httpx.delete(f"{pressed.url}/v1/sessions/{scheme}-{view}").raise_for_status()


def test_the_views_are_reached_by_keyboard(pressed: Daemon, open_page: OpenPage) -> None:
    page = open_page(pressed.url)
    wait_for_data(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for name, view in (("Memory", "memory"), ("Sessions", "sessions"), ("Chat", "chat")):
        while page.evaluate("document.activeElement.textContent") != name:
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        expect(page.locator("#content")).to_be_focused()
        page.keyboard.press("Shift+Tab")
        page.locator("nav a").first.focus()


def test_a_hidden_page_asks_for_nothing(start_shared_daemon: StartDaemon, open_page: OpenPage) -> None:
    daemon = start_shared_daemon("--sim-step-ms", "50")
    page = open_page(daemon.url)
    wait_for_data(page)
    assert num_streams(daemon) == 1
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", {get: () => window.isHidden, configurable: true});
            window.isHidden = true;
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    deadline = time.monotonic() + 20
    while num_streams(daemon) and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert num_streams(daemon) == 0
    deadline = time.monotonic() + 20
    page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    while not num_streams(daemon) and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert num_streams(daemon) == 1


def num_streams(daemon: Daemon) -> int:
    text = httpx.get(f"{daemon.url}/metrics").text
    found = re.search(r'http_requests_active\{[^}]*endpoint="/console/events",method="GET"[^}]*\} (\S+)', text)
    return int(float(found[1])) if found else 0
