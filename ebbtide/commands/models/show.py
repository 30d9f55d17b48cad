"""``ebbtide show``: prints a model's size, and how many tokens of KV fit into this machine's memory."""

from __future__ import annotations

import argparse
import contextlib

from ebbtide.config import RunnerConfig
from ebbtide.hub.cache import find_cached
from ebbtide.hub.names import parse_name
from ebbtide.model_runner.kv.host_memory import available_memory
from ebbtide.tokenization.model_files import ModelFiles, resolve_model

from ...errors import StartupError
from ..table import size_text
from .facts import ModelFacts, read_facts
from .local_models import local_model

ELEMENT_BYTES = 2  # size of bfloat16, the assumed type of the weights and the KV cache
CPU_POOL_GIB = 4  # maximum size of the default pool on the CPU, in GiB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ebbtide show``."""
    text = "a name that ebbtide list prints, a folder in Hugging Face format, or a .gguf file"
    parser.add_argument("name", metavar="NAME", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the properties of a model. Raises StartupError if the model is not on this machine's disk."""
    files = _on_disk(arguments.name)
    if files.simulated:
        raise StartupError("The simulated model has no weights; --max-total-tokens is the size of its KV pool.")
    facts = read_facts(files)
    lines = [*_model_lines(files, facts), *_memory_lines(facts)]
    width = max(len(label) for label, _ in lines)
    for label, value in lines:
        print(f"{label:<{width}}  {value}")
    return 0


def _on_disk(name: str) -> ModelFiles:
    """Return the location of a model without downloading anything. Raises StartupError if it is not on the disk."""
    hub_name = parse_name(name)
    if hub_name is None or name.startswith((".", "~")):
        return resolve_model(name)
    with contextlib.suppress(StartupError):
        return resolve_model(f"./{name}")  # a folder or file in the working directory
    found = find_cached(hub_name) or find_cached(parse_name(local_model(name).name) or hub_name)
    if found is None:
        raise StartupError(f"The download of {name} is incomplete: run `ebbtide pull {name}`.")
    return found


def _model_lines(files: ModelFiles, facts: ModelFacts) -> list[tuple[str, str]]:
    place = f"{files.directory}/{files.gguf}" if files.gguf else files.directory
    return [
        ("model", files.name),
        ("files", place),
        ("architecture", facts.architecture),
        ("parameters", f"{facts.num_parameters / 1e6:,.1f} million"),
        ("context", f"{facts.context_length} tokens" if facts.context_length else "not known"),
        ("weights", f"{size_text(facts.file_bytes)} on the disk ({', '.join(facts.types)})"),
    ]


def _memory_lines(facts: ModelFacts) -> list[tuple[str, str]]:
    weight_bytes = facts.num_parameters * ELEMENT_BYTES
    lines = [("weights in bfloat16", size_text(weight_bytes))]
    if facts.kv_numbers is None:
        return [*lines, ("KV cache", "not known: the configuration lacks the usual fields")]
    token_bytes = facts.kv_numbers * ELEMENT_BYTES
    lines.append(("KV cache", f"{token_bytes} bytes per token in bfloat16"))
    try:
        available = available_memory()
    except OSError:
        return lines
    room = int(available * RunnerConfig().mem_fraction_static) - weight_bytes
    pool = min(room, CPU_POOL_GIB << 30)
    lines.append(("available memory", f"{size_text(available)} now, on the CPU"))
    if room < token_bytes:
        return [*lines, ("fits here", "no: the weights leave no memory for a KV cache")]
    tokens = pool // token_bytes
    contexts = f", {tokens / facts.context_length:.1f} full contexts" if facts.context_length else ""
    lines.append(("fits here", f"{tokens} tokens of KV in the default pool of {size_text(pool)}{contexts}"))
    if room > pool:
        lines.append(("at most", f"{room // token_bytes} tokens: --max-total-tokens {room // token_bytes}"))
    return lines
