"""The complete command: its input, its refusals and its output."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ebbtide.commands import simulate
from ebbtide.commands.simulation.mixes import MIXES
from ebbtide.commands.simulation.rules import POLICIES
from ebbtide.errors import StartupError
from ebbtide.server import cli

SMALL = ("--mix", "chat", "--requests", "12", "--rows", "8")
PNG = b"\x89PNG\r\n\x1a\n"


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    return parser.parse_args(words)


def result_of(tmp_path: Path, *words: str) -> dict[str, Any]:
    path = tmp_path / "result.json"
    assert simulate.run(parse(*SMALL, "--json", str(path), *words)) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_the_names_of_the_flags_are_the_names_of_the_tables() -> None:
    assert tuple(MIXES) == simulate.MIX_NAMES
    assert tuple(POLICIES) == simulate.POLICY_NAMES


def test_every_pool_is_simulated_with_every_policy_and_parameter(tmp_path: Path) -> None:
    words = ("--pool-fraction", "0.5", "1", "--policy", "cost", "vllm", "--schedule-conservativeness", "0.5", "1")
    result = result_of(tmp_path, *words, "--watermark", "0.1")
    cases = [(case["policy"], case["parameter"], case["pool_fraction"]) for case in result["cases"]]
    expected = [("cost", 0.5), ("cost", 1.0), ("vllm", 0.1)]
    assert [(name, value) for name, value, _ in cases] == expected * 2
    assert [fraction for _, _, fraction in cases] == pytest.approx([0.5] * 3 + [1.0] * 3, abs=0.01)


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(tmp_path: Path) -> None:
    first = result_of(tmp_path, "--seed", "3")
    assert result_of(tmp_path, "--seed", "3") == first
    assert result_of(tmp_path, "--seed", "4")["cases"] != first["cases"]


def test_a_pool_as_large_as_the_demand_needs_no_retraction(tmp_path: Path) -> None:
    result = result_of(tmp_path, "--pool-fraction", "1.3", "--policy", "length", "cost")
    for case in result["cases"]:
        assert (case["retractions"], case["recomputed_tokens"], case["aborted"]) == (0, 0, 0)
        assert case["completed"] == 12


def test_a_sweep_goes_from_a_tight_pool_to_an_ample_one(tmp_path: Path) -> None:
    cases = result_of(tmp_path, "--sweep", "--policy", "length")["cases"]
    assert [round(case["pool_fraction"], 1) for case in cases] == list(simulate.SWEPT)
    assert cases[0]["ttft_p99_s"] > 2 * cases[-1]["ttft_p99_s"]


def test_a_costlier_step_takes_longer(tmp_path: Path) -> None:
    fast, slow = (
        result_of(tmp_path, "--rate", "5", "--step-ms", value, "--policy", "length")["cases"][0]["latency_p50_s"]
        for value in ("1", "100")
    )
    assert slow > 10 * fast


def test_the_pictures_are_written(tmp_path: Path) -> None:
    usage, front = tmp_path / "usage.png", tmp_path / "front.png"
    result_of(tmp_path, "--plot", str(usage), "--plot-front", str(front), "--pool-fraction", "0.5", "0.8")
    assert usage.read_bytes().startswith(PNG)
    assert front.read_bytes().startswith(PNG)


def test_the_table_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    simulate.run(parse(*SMALL, "--policy", "length", "sglang", "--schedule-conservativeness", "0.5"))
    output = capsys.readouterr().out
    assert "mix chat, seed 0: 12 requests" in output
    assert "length, conservativeness 0.5" in output
    assert "sglang, conservativeness 0.5" in output


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    for flag in ("--json", "--plot"):
        words = ("--policy", "length", flag, str(tmp_path / "missing" / "file"))
        with pytest.raises(StartupError, match="could not be written"):
            simulate.run(parse(*SMALL, *words))


def test_the_log_level_of_the_scheduler_is_restored() -> None:
    logger = logging.getLogger("ebbtide.scheduler")
    before = logger.level
    simulate.run(parse(*SMALL, "--policy", "length"))
    assert logger.level == before != logging.ERROR


def test_steps_that_take_no_time_are_refused() -> None:
    free = ("--step-ms", "0", "--decode-row-us", "0", "--prefill-token-us", "0", "--context-token-ns", "0")
    with pytest.raises(StartupError, match="A step must take time"):
        simulate.run(parse(*SMALL, *free))


def test_a_pool_without_a_page_is_refused() -> None:
    with pytest.raises(StartupError, match="is smaller than a page of 16"):
        simulate.run(parse(*SMALL, "--pool", "15"))


@pytest.mark.parametrize(
    "words",
    [("--pool-fraction", "0"), ("--watermark", "1"), ("--step-ms", "-1"), ("--requests", "0"), ("--rate", "inf")],
)
def test_an_invalid_value_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert words[1] in capsys.readouterr().err


def test_the_command_line_reaches_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_s": 0, "prompt_len": 20, "output_len": 5}\n')
    assert cli.main(["simulate", "--trace", str(trace), "--pool", "64"]) == 0
    assert "1 requests" in capsys.readouterr().out


def test_a_trace_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--trace", str(tmp_path / "none.jsonl")]) == 1
    error = capsys.readouterr().err
    assert "could not be read" in error
    assert error.count("\n") == 1
