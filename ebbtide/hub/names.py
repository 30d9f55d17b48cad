"""Parses names such as ``OWNER/NAME:Q4_K_M`` and selects their files in a repository. Uses neither network nor disk."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import StartupError
from ..tokenization.model_files import split_parts

NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w./-]+))?")
# A quantization label in a file's path, as a whole word: Q4_K_M, IQ2_XS, UD-Q5_K_XL or BF16, for example.
QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q|TQ)\d\w*|MXFP4\w*|BF16|FP?16|FP?32)(?![A-Za-z0-9_])", re.IGNORECASE
)
PREFERRED = "Q4_K_M"  # the quantization that OWNER/NAME selects if there are several GGUF models
NO_MODELS = ("mmproj", "imatrix")  # parts of the names of GGUF files with an image encoder or calibration data
SINGLE_FILE = "model.safetensors"
SMALL_FILES = ("*.json", "*.jinja", "tokenizer*", "*.model", "vocab.txt", "merges.txt")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the Hub.

    Attributes:
        repository: OWNER/NAME.
        label: quantization label, or path of a GGUF file; None for the repository's default model.
    """

    repository: str
    label: str | None = None

    def __str__(self) -> str:
        return self.repository if self.label is None else f"{self.repository}:{self.label}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of a repository that a name selects.

    Attributes:
        name: the name with the label of the selected quantization.
        weights: paths of the weights in the repository; for GGUF, the parts in order.
        others: paths of the configuration and the tokenizer, which are fetched before the weights.
        is_gguf: True for GGUF, False for safetensors.
    """

    name: HubName
    weights: tuple[str, ...]
    others: tuple[str, ...]
    is_gguf: bool


def parse_name(text: str) -> HubName | None:
    """Parse OWNER/NAME or OWNER/NAME:LABEL. Returns None if ``text`` has neither form."""
    match = NAME.fullmatch(text)
    return HubName(match[1], match[2]) if match else None


def quantization_of(path: str) -> str | None:
    """Return the quantization label in a GGUF file's path, in upper case; None if the path contains no label.

    If there are several labels, the last one counts: a folder or the model's name may contain others.
    """
    labels = QUANTIZATION.findall(path.removesuffix(".gguf"))
    return labels[-1].upper() if labels else None


def gguf_models(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the GGUF models of a repository: label → paths of the parts, in order.

    If a file's path contains no quantization label, or if an earlier file has the same label, the path is used as the
    label.
    """
    files = sorted(path for path in paths if path.lower().endswith(".gguf") and not _is_no_model(path))
    models: dict[str, tuple[str, ...]] = {}
    for path in files:
        folder, _, file = path.rpartition("/")
        parts = tuple(f"{folder}/{part}" if folder else part for part in split_parts(file))
        if path != parts[0]:
            continue  # a later part of a split file
        label = quantization_of(path) or path
        models[path if label in models else label] = parts
    return models


def choose(name: HubName, paths: Sequence[str]) -> Choice:
    """Return the files that ``name`` selects in a repository that has the files ``paths``.

    Raises StartupError if the repository has no such model. The message lists the available labels.
    """
    quantized = gguf_models(paths)
    if name.label is None and "config.json" in paths and _safetensors(paths):
        weights = _safetensors(paths)
        others = [path for path in paths if any(fnmatch.fnmatchcase(path, pattern) for pattern in SMALL_FILES)]
        return Choice(name, weights, tuple(sorted(path for path in others if path not in weights)), is_gguf=False)
    if not quantized:
        reason = "has no GGUF files" if name.label else "has neither a config.json with safetensors nor GGUF files"
        raise StartupError(f"The repository {name.repository} {reason}.")
    label = _label(name, quantized)
    return Choice(HubName(name.repository, label), quantized[label], (), is_gguf=True)


def _is_no_model(path: str) -> bool:
    file = path.rpartition("/")[2].lower()
    return any(word in file for word in NO_MODELS)


def _safetensors(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the safetensors files in the root folder, without the second copy in Mistral's format."""
    files = [path for path in paths if path.endswith(".safetensors") and "/" not in path]
    if SINGLE_FILE in files:
        return (SINGLE_FILE,)
    return tuple(sorted(path for path in files if not path.startswith("consolidated")))


def _label(name: HubName, quantized: dict[str, tuple[str, ...]]) -> str:
    by_name = {label.casefold(): label for label in quantized}
    by_name |= {parts[0].casefold(): label for label, parts in quantized.items()}
    if name.label is not None:
        label = by_name.get(name.label.casefold())
    elif len(quantized) == 1:
        label = next(iter(quantized))
    else:
        label = by_name.get(PREFERRED.casefold())
    if label is None:
        wanted = f"has no {name.label}" if name.label else "has several GGUF models; select one"
        examples = ", ".join(f"{name.repository}:{label}" for label in quantized)
        raise StartupError(f"The repository {name.repository} {wanted}: {examples}.")
    return label
