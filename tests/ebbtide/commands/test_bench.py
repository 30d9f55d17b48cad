"""The complete command with a fake server: the requests that it sends, its counts, and the kinds of failures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide.commands import bench
from ebbtide.errors import StartupError

WORDS_PER_PROMPT = 20  # at two tokens a word and five for the template, prompts of 45 tokens
PROMPT_LEN = "45"


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def measure(fake: Any, tmp_path: Path) -> Any:
    """Run the command. Returns the content of its JSON file, with the exit code under ``code``."""

    def run(*words: str) -> dict[str, Any]:
        path = tmp_path / "result.json"
        load = ("--num-requests", "6", "--prompt-len", PROMPT_LEN, "--output-len", "4", "--warmup", "0")
        code = bench.run(parse("--base-url", fake.base_url, "--json", str(path), *load, *words))
        return {**json.loads(path.read_text()), "code": code}

    return run


def errors(answer: dict[str, Any]) -> dict[str, int]:
    return {error["kind"]: error["count"] for error in answer["result"]["errors"]}


def prompts(fake: Any) -> list[list[str]]:
    return [body["messages"][0]["content"].split() for body in fake.measured]


def test_counts_tokens_and_requests(measure: Any) -> None:
    answer = measure()
    totals = answer["result"]["totals"]
    assert answer["code"] == 0
    assert (totals["completed"], totals["failed"], totals["output_tokens"]) == (6, 0, 24)
    assert (totals["prompt_tokens"], totals["cached_tokens"]) == (6 * 45, 18)
    assert totals["finish_reasons"] == {"length": 6}
    assert totals["counted_by_chunks"] == 0
    assert totals["output_tokens_per_s"] == pytest.approx(24 / totals["duration_s"], rel=0.05)
    assert 0 < totals["client_cpu_share"] <= 1.5


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_every_latency_has_its_percentiles(measure: Any, endpoint: str) -> None:
    result = measure("--model", "slow", "--endpoint", endpoint)["result"]
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        assert set(result[name]) == {"mean", "p50", "p90", "p99"}
    # The server waits 20 ms before each event: three gaps between four tokens, and the end after them. A busy machine
    # may read the first token late, which shortens the measured gaps, but not to half.
    assert result["itl_ms"]["p50"] >= 10
    assert result["tpot_ms"]["mean"] >= 10
    assert result["e2e_ms"]["mean"] >= result["ttft_ms"]["mean"] + 3 * 10


def test_role_chunk_is_not_the_first_token(measure: Any) -> None:
    # Two events come before the end of the first 40 ms, and the first is only the role.
    assert measure("--model", "slow", "--output-len", "1")["result"]["ttft_ms"]["p50"] >= 39


def test_takes_the_first_listed_model(measure: Any, fake: Any) -> None:
    fake.models = ["other", "good"]
    assert measure()["target"]["model"] == "other"
    assert {body["model"] for body in fake.bodies} == {"other"}


def test_prompts_have_the_asked_length_in_tokens(measure: Any, fake: Any) -> None:
    answer = measure()
    assert answer["calibration"] == {"tokens_per_word": 2.0, "overhead": 5.0}
    assert {len(words) for words in prompts(fake)} == {WORDS_PER_PROMPT}
    assert len({tuple(words) for words in prompts(fake)}) == 6


def test_shared_prefix_is_shared_and_the_rest_is_not(measure: Any, fake: Any) -> None:
    measure("--shared-prefix", "0.5")
    assert len({tuple(words[:10]) for words in prompts(fake)}) == 1
    assert len({tuple(words[10:]) for words in prompts(fake)}) == 6


def test_ranges_are_drawn_within_bounds(measure: Any, fake: Any) -> None:
    measure("--num-requests", "30", "--prompt-len", "15:45", "--output-len", "2:9")
    assert {len(words) for words in prompts(fake)} <= set(range(5, WORDS_PER_PROMPT + 1))
    lengths = {body["max_tokens"] for body in fake.measured}
    assert lengths <= set(range(2, 10))
    assert len(lengths) > 3


def test_same_seed_sends_the_same_and_another_does_not(measure: Any, fake: Any) -> None:
    for seed in ("7", "7", "8"):
        measure("--seed", seed, "--concurrency", "1")
    first, second, third = (prompts(fake)[start : start + 6] for start in (0, 6, 12))
    assert first == second
    assert first != third


def test_warmup_is_not_measured_and_has_prompts_of_its_own(measure: Any, fake: Any) -> None:
    totals = measure("--warmup", "3")["result"]["totals"]
    assert totals["completed"] == 6
    assert len(fake.measured) == 9
    assert len({tuple(words) for words in prompts(fake)}) == 9


def test_concurrency_bounds_what_is_in_flight(measure: Any, fake: Any) -> None:
    measure("--model", "slow", "--concurrency", "2")
    assert fake.most_in_flight == 2


def test_each_request_opens_its_own_connection(measure: Any, fake: Any) -> None:
    """Some servers close the connection after a stream; another request on it would be counted as an error."""
    measure("--concurrency", "1", "--num-requests", "20")
    assert len(fake.connections) == len(fake.bodies)


def test_open_loop_sends_when_due_however_many_are_in_flight(measure: Any, fake: Any) -> None:
    answer = measure("--model", "slow", "--output-len", "20", "--request-rate", "200")
    assert fake.most_in_flight > 2
    assert answer["load"]["concurrency"] is None
    assert answer["load"]["request_rate"] == 200
    assert answer["result"]["totals"]["completed"] == 6


@pytest.mark.parametrize("switch", [True, False])
def test_ignore_eos_is_sent_only_if_asked(measure: Any, fake: Any, *, switch: bool) -> None:
    measure("--ignore-eos" if switch else "--no-ignore-eos")
    assert {body.get("ignore_eos") for body in fake.bodies} == ({True} if switch else {None})


def test_strict_server_is_usable_without_ignore_eos(measure: Any) -> None:
    assert measure("--model", "strict", "--no-ignore-eos")["result"]["totals"]["completed"] == 6


def test_refusal_of_the_first_request_is_one_sentence(measure: Any) -> None:
    with pytest.raises(StartupError, match="rejects the first request with HTTP 400: Unknown parameter"):
        measure("--model", "strict")


def test_api_key_is_sent_and_not_written_down(measure: Any, fake: Any, tmp_path: Path) -> None:
    measure("--api-key", "sk-secret")
    assert set(fake.authorization) == {"Bearer sk-secret"}
    assert "sk-secret" not in (tmp_path / "result.json").read_text()


def test_server_without_usage_is_counted_by_chunks(measure: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer = measure("--model", "without-usage")
    totals = answer["result"]["totals"]
    assert answer["calibration"] is None
    assert (totals["output_tokens"], totals["counted_by_chunks"], totals["prompt_tokens"]) == (24, 6, None)
    printed = capsys.readouterr().out
    assert "prompt lengths are in words" in printed
    assert "one per chunk in 6 answers" in printed


@pytest.mark.parametrize(
    ("model", "kind", "example"),
    [
        ("busy", "HTTP 429 queue_full", "too many requests wait"),
        ("plain-error", "HTTP 502", "upstream is away"),
        ("fails-midway", "error in the stream kv_cache_exhausted", "the pool is exhausted"),
        ("cut-short", "connection dropped", "the stream ended before the answer was complete"),
        ("dropped", "connection dropped", ""),
        ("garbage", "invalid answer", "{not json"),
    ],
)
def test_failures_are_distinguished(
    measure: Any, model: str, kind: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = measure("--model", model)
    assert answer["code"] == 1
    assert errors(answer) == {kind: 6}
    assert example in answer["result"]["errors"][0]["example"]
    assert answer["result"]["ttft_ms"] is None
    assert kind.split()[0] in capsys.readouterr().out


def test_request_without_end_times_out(measure: Any) -> None:
    answer = measure("--model", "stuck", "--timeout", "0.3", "--num-requests", "2")
    assert errors(answer) == {"timeout": 2}


def test_no_server_is_one_sentence() -> None:
    # Port 9, discard: nothing listens there on a test machine.
    with pytest.raises(StartupError, match=r"No server is reachable at http://127\.0\.0\.1:9/v1"):
        bench.run(parse("--base-url", "http://127.0.0.1:9/v1"))


def test_base_url_without_v1_is_named(fake: Any) -> None:
    with pytest.raises(StartupError, match="returned HTTP 404: add /v1 to the base URL"):
        bench.run(parse("--base-url", fake.base_url.removesuffix("/v1")))


def test_server_that_is_still_loading_is_named(fake: Any) -> None:
    fake.loading = True
    with pytest.raises(StartupError, match=r"returned HTTP 503 loading: The model is still loading\.$"):
        bench.run(parse("--base-url", fake.base_url))


def test_server_without_models_is_named(fake: Any) -> None:
    fake.models = []
    with pytest.raises(StartupError, match="lists no model"):
        bench.run(parse("--base-url", fake.base_url))


def test_result_that_cannot_be_written_is_one_sentence(fake: Any, tmp_path: Path) -> None:
    words = ("--base-url", fake.base_url, "--num-requests", "1", "--warmup", "0")
    with pytest.raises(StartupError, match=r"could not be written to .*: No such file"):
        bench.run(parse(*words, "--json", str(tmp_path / "no" / "such" / "folder.json")))


@pytest.mark.parametrize(
    "words",
    [
        ("--concurrency", "0"),
        ("--request-rate", "0"),
        ("--request-rate", "nan"),
        ("--shared-prefix", "1.5"),
        ("--prompt-len", "0"),
        ("--prompt-len", "9:3"),
        ("--output-len", "many"),
        ("--concurrency", "2", "--request-rate", "3"),
        ("--endpoint", "embeddings"),
    ],
)
def test_bad_flags_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert words[-2] in capsys.readouterr().err
