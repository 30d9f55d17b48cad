import pytest

from ebbtide.server.command_line.foreign_flags import MODEL, RENAMED, WITHOUT_EQUIVALENT, translate
from ebbtide.server.command_line.parser import build_parser


def own_flags() -> set[str]:
    _, commands = build_parser(["serve"])
    return set(commands["serve"].flags)


def test_every_renamed_flag_exists() -> None:
    assert set(RENAMED.values()) <= own_flags()


def test_no_flag_of_ebbtide_is_translated() -> None:
    assert own_flags().isdisjoint({*RENAMED, *MODEL, *WITHOUT_EQUIVALENT})


def test_flags_that_a_sentence_names_exist() -> None:
    named = {
        word.strip(".,:") for known in WITHOUT_EQUIVALENT.values() for word in known.says.split() if word[:2] == "--"
    }
    assert named <= own_flags()


@pytest.mark.parametrize(
    ("words", "translated"),
    [
        ("--max-model-len 100 --max-num-seqs=4", "--context-length 100 --max-running-requests=4"),
        ("-m some/model -c 100", "some/model --context-length 100"),
        ("--model-path=some/model", "some/model"),
        ("m --no-enable-prefix-caching --port 1", "m --disable-radix-cache --port 1"),
        ("m --enable-prefix-caching --port 1", "m --port 1"),
        ("m -ngl 99 --jinja", "m"),
        ("m -fa --port 1", "m --port 1"),
        ("m --tensor-parallel-size 2", "m --tp 2"),
        ("m --pipeline-parallel-size=1", "m"),
        ("m --port 1", "m --port 1"),
    ],
)
def test_flags_are_renamed_or_left_out(words: str, translated: str) -> None:
    translation = translate(words.split())
    assert (translation.words, translation.refusal) == (translated.split(), "")
    assert bool(translation.notes) == (words != translated)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            "m --pp-size 2",
            "--pp-size has no equivalent. ebbtide uses several devices only by tensor parallelism: see --tp.",
        ),
        ("m --enable-lora", "--enable-lora has no equivalent. ebbtide has no LoRA adapters."),
    ],
)
def test_flags_that_change_the_server_are_refused(words: str, refusal: str) -> None:
    assert translate(words.split()).refusal == refusal
