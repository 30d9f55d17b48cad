"""Damaged files end the start with one sentence or have no effect. They cause no other exception and no hang."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from ebbtide.config import RunnerConfig
from ebbtide.errors import Rejected, StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner import build_runner
from ebbtide.progress import no_progress
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.tokenizer import ChatPrompt, load_tokenizer

from ..checkpoints import write_checkpoint
from ..driver import Driver
from ..families import FAMILIES
from ..gguf_files import write_gguf
from .mangling import Mangle, mangled_gguf, mangled_json

GGUF = "tiny.gguf"
LIMIT_S = 60.0  # of processor time
IN_MAKE_TEST, IN_SOAK = 6, 340  # mutations per file


@contextmanager
def time_limit() -> Iterator[None]:
    """Raises TimeoutError in the block after ``LIMIT_S`` seconds of processor time."""

    def expire(*_: object) -> None:
        raise TimeoutError("the start hangs")

    previous = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def files_in(folder: Path) -> ModelFiles:
    return ModelFiles("m", str(folder), GGUF if (folder / GGUF).exists() else None)


def start_model(folder: Path) -> None:
    """Start the runner as the scheduler does, and compute two tokens."""
    config = RunnerConfig(dtype="float32", device="cpu", max_total_tokens=256, max_running_requests=2)
    runner = build_runner(files_in(folder), config, no_progress)
    Driver(runner).generate([[5, 6, 7]], SamplingParams(max_tokens=2, temperature=0))


def start_tokenizer(folder: Path) -> None:
    """Load the tokenizer as the front does, and encode one chat."""
    tokenizer = load_tokenizer(files_in(folder))
    tokenizer.encode("the tide", add_special_tokens=True)
    with suppress(Rejected):  # a damaged template refuses each chat; completions work
        tokenizer.encode_chat(ChatPrompt([{"role": "user", "content": "the <|end|> tide"}]))


def outcome(start: Callable[[Path], None], folder: Path) -> str:
    """Return the outcome of the start: "started" or "refused".

    Raises AssertionError if a refusal is not one readable sentence.
    """
    try:
        with time_limit():
            start(folder)
    except StartupError as error:
        sentence = str(error)
        assert sentence.endswith((".", "?"))
        assert "\n" not in sentence
        assert "Traceback" not in sentence
        assert len(sentence) < 800
        sentence.encode()
        return "refused"
    return "started"


FILES: list[tuple[str, str, Mangle, list[Callable[[Path], None]]]] = [
    ("llama", "config.json", mangled_json, [start_model, start_tokenizer]),
    ("phi3", "config.json", mangled_json, [start_model]),
    ("llama", "generation_config.json", mangled_json, [start_model, start_tokenizer]),
    ("llama", "model.safetensors.index.json", mangled_json, [start_model]),
    ("llama", "tokenizer.json", mangled_json, [start_tokenizer]),
    ("llama", "tokenizer_config.json", mangled_json, [start_tokenizer]),
    ("llama as GGUF", GGUF, mangled_gguf, [start_model, start_tokenizer]),
]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints whose weights are in several files with an index, or in a GGUF file."""
    folders: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family == "llama as GGUF" and family not in folders:
            folders[family] = tmp_path_factory.mktemp("gguf")
            model = FAMILIES["llama"].model(seed=7)
            write_gguf(folders[family] / GGUF, model, "llama")
        elif family not in folders:
            folders[family] = write_checkpoint(tmp_path_factory.mktemp(family), family, sharded=True)
        return folders[family]

    return folder_of


def mangle_and_start(source: Path, name: str, mangle: Mangle, starts: list[Callable[[Path], None]], seed: int) -> str:
    """Start with one mutation of one file, in place; the file is restored. Returns the outcomes."""
    path = source / name
    original = path.read_bytes()
    path.write_bytes(mangle(original, Random(f"{name} {seed}")))
    try:
        return " ".join(outcome(start, source) for start in starts)
    except BaseException as error:
        error.add_note(f"seed {seed} of {name}: {path.read_bytes()[:3000]!r}")
        raise
    finally:
        path.write_bytes(original)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "name", "mangle", "starts"), FILES)
def test_a_mangled_file_is_refused_in_one_sentence(
    family: str,
    name: str,
    mangle: Mangle,
    starts: list[Callable[[Path], None]],
    sharded: Callable[[str], Path],
) -> None:
    for seed in range(IN_MAKE_TEST):
        mangle_and_start(sharded(family), name, mangle, starts, seed)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "name", "mangle", "starts"), FILES)
def test_many_mangled_files_are_refused_in_one_sentence(
    family: str,
    name: str,
    mangle: Mangle,
    starts: list[Callable[[Path], None]],
    sharded: Callable[[str], Path],
) -> None:
    counts = Counter(mangle_and_start(sharded(family), name, mangle, starts, seed) for seed in range(IN_SOAK))
    print(f"{family} {name}: {dict(counts)}")
    assert len(counts) > 1  # some mutations have an effect, and some have none
