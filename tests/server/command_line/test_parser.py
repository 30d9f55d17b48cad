import shutil
import subprocess

import pytest

from ebbtide.server import cli
from ebbtide.server.command_line.parser import SHELLS, parse


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["serve", "sim", "--portt", "1"], "did you mean --port?"),
        (["serve", "sim", "--max-modle-len=1"], "did you mean --context-length?"),
        (["serve", "sim", "--contxt-length", "1"], "did you mean --context-length?"),
        (["bench", "--concurency", "1"], "did you mean --concurrency?"),
        (["serev"], "did you mean serve?"),
        (["serve", "--device", "cdua"], "did you mean cuda?"),
    ],
)
def test_a_wrong_word_gets_the_closest_right_one(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(words)
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert meant in text
    assert text.count("\n") == 1


def test_a_word_that_resembles_nothing_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["serve", "sim", "--zzzzzz"])
    assert capsys.readouterr().err == "ebbtide serve: unrecognized arguments: --zzzzzz (see ebbtide serve --help)\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_knows_commands_flags_and_models(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    flag = "max-total-tokens" if shell == "fish" else "--max-total-tokens"
    assert all(word in script for word in ("doctor", flag, "ebbtide list --names"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
