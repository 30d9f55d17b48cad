import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from ebbtide.runtime.log import MAX_MESSAGE, OneLine, setup_logging


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def formatted(message: str, *arguments: object, error: Exception | None = None) -> str:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return OneLine("%(levelname)s %(message)s").format(
        logging.LogRecord("x", logging.INFO, "x.py", 1, message, arguments, exc_info)
    )


@pytest.mark.parametrize(
    "evil", ["a\nERROR forged", "a\rERROR", "a\x1b[2J", "a\u202eb", "a\u2028b", "a\x85b", "a\ud800"]
)
def test_nothing_in_a_record_can_begin_a_new_line_or_move_the_cursor(evil: str) -> None:
    line = formatted("request %s", evil)
    assert line.isprintable()
    assert line.startswith("INFO request a\\")


def test_readable_text_of_any_language_stays() -> None:
    assert formatted("tide %s", "прилив 潮 🌊") == "INFO tide прилив 潮 🌊"


@pytest.mark.parametrize(("no_color", "shown"), [("", "\x1b[33mWARNING\x1b[0m WARNING"), ("1", "WARNING WARNING")])
def test_the_level_is_coloured_on_a_terminal_only(no_color: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "WARNING", (), None)
    assert OneLine("%(levelname)s %(message)s", on_terminal=True).format(record) == f"\r\x1b[2K{shown}"
    assert OneLine("%(levelname)s %(message)s").format(record) == "WARNING WARNING"


def test_a_message_of_a_megabyte_is_cut() -> None:
    assert len(formatted("request %s", "x" * 1_000_000)) == MAX_MESSAGE + 1


def test_a_traceback_keeps_its_lines_but_none_of_them_looks_like_a_record() -> None:
    try:
        raise ValueError("bad\nERROR forged\x1b[2J")
    except ValueError as error:
        first, *rest = formatted("it broke %s", "a\nb", error=error).splitlines()
    assert first == "INFO it broke a\\nb"
    assert len(rest) >= 4
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_lines_name_their_process_and_begin_with_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("scheduler", "warning")
    logging.getLogger("ebbtide.x").info("not this")
    logging.getLogger("ebbtide.x").warning("this")
    setup_logging("front", "debug")
    for library in ("httpx", "torch._subclasses.fake_tensor"):
        logging.getLogger(library).info("never a library's chatter")
    logging.getLogger("ebbtide.x").debug("once")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=2)[2].split() for line in lines] == [
        ["scheduler", "WARNING", "this"],
        ["front", "DEBUG", "once"],
    ]
    assert sys.stderr is not None


def json_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_json_line_has_time_process_level_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("scheduler", "info", "json")
    logging.getLogger("ebbtide.x").warning("%d pages", 3)
    (line,) = json_lines(capsys)
    when = datetime.fromisoformat(line.pop("time"))
    assert when.utcoffset() == timedelta(0)
    assert line == {"process": "scheduler", "level": "warning", "message": "3 pages"}


def test_a_json_line_about_one_request_has_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("front", "info", "json")
    logging.getLogger("ebbtide.x").info("request %s failed", "a-0", extra={"rid": "a-0"})
    assert json_lines(capsys)[0]["rid"] == "a-0"


@pytest.mark.parametrize("evil", ['a"}\n{"level": "forged"}', "a\x1b[2J", "a\u202eb", "a\u2028b", "a\x85b", "a\ud800"])
def test_no_record_can_add_a_line_to_the_json_log(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("front", "info", "json")
    logging.getLogger("ebbtide.x").info("request %s", evil, extra={"rid": evil})
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.removesuffix("\n").isprintable()
    assert text.isascii()
    assert json.loads(text)["message"] == f"request {evil}"


def test_a_traceback_is_a_field_of_its_json_line_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("front", "info", "json")
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        logging.getLogger("ebbtide.x").exception("it broke %s", "y" * 100_000)
    (line,) = json_lines(capsys)
    assert len(line["traceback"]) == len(line["message"]) == MAX_MESSAGE + 1


def test_a_line_on_a_terminal_clears_the_progress_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    setup_logging("scheduler", "info")
    logging.getLogger("ebbtide.x").info("this")
    assert re.fullmatch(r"\r\x1b\[2K\S+ \S+ scheduler   INFO    this\n", terminal.getvalue())


def test_a_line_in_a_file_has_no_terminal_codes(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("scheduler", "info")
    logging.getLogger("ebbtide.x").info("this")
    assert "\x1b" not in capsys.readouterr().err
