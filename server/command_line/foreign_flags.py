"""Flags of vLLM, SGLang and llama-server that ``ebbtide serve`` accepts, translated before the command line is parsed.

Some flags are renamed. Others are ignored, because ebbtide always behaves as they request or has no such behaviour. The
rest are refused, because the server would not behave as the user expects. The module does not depend on ebbtide's
configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Flags of other servers that name the model. In ebbtide, the model is a positional argument.
MODEL = ("-m", "--model", "--model-path", "-hf", "-hfr", "--hf-repo")

RENAMED = {
    # vLLM
    "--max-model-len": "--context-length",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "-q": "--quantization",
    "--tensor-parallel-size": "--tp",
    "-tp": "--tp",
    "--block-size": "--page-size",
    "--enable-log-requests": "--log-requests",
    "--scheduling-policy": "--schedule-policy",
    "--no-enable-prefix-caching": "--disable-radix-cache",
    "--disable-fastapi-docs": "--disable-docs",
    "--enforce-eager": "--disable-cuda-graph",
    "--otlp-traces-endpoint": "--otlp-endpoint",
    "--disable-hybrid-kv-cache-manager": "--disable-hybrid-swa-memory",
    # SGLang
    "--max-prefill-tokens": "--chunked-prefill-size",
    "--tp-size": "--tp",
    "--max-mamba-cache-size": "--max-states",
    # llama-server
    "-c": "--context-length",
    "--ctx-size": "--context-length",
    "-t": "--num-threads",
    "--threads": "--num-threads",
    "-np": "--max-running-requests",
    "--parallel": "--max-running-requests",
    "-b": "--chunked-prefill-size",
    "--batch-size": "--chunked-prefill-size",
    "-a": "--served-model-name",
    "--swa-full": "--disable-hybrid-swa-memory",
    "--alias": "--served-model-name",
    "--ssl-key-file": "--ssl-keyfile",
    "--ssl-cert-file": "--ssl-certfile",
}

ONE_DEVICE = "ebbtide uses several devices only by tensor parallelism: see --tp."
NO_LORA = "ebbtide has no LoRA adapters."
NO_SPECULATION = "ebbtide has no speculative decoding."
HOST_TIER = "Host memory can hold only the KV of retracted requests: see --kv-offload-gb."
TEMPLATE = "The chat template and the tokenizer come from the model's files."


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flag of another server without an equivalent in ebbtide.

    Attributes:
        says: an explanation for the user.
        takes_value: True if a value follows the flag.
        harmless: values for which the flag is ignored, while other values are refused; None to ignore all values.
    """

    says: str
    takes_value: bool = True
    harmless: tuple[str, ...] | None = ()


def _ignored(says: str, *, takes_value: bool = False) -> Foreign:
    return Foreign(says, takes_value, harmless=None)


WITHOUT_EQUIVALENT = {
    **dict.fromkeys(("--pipeline-parallel-size", "-pp", "--pp-size"), Foreign(ONE_DEVICE, harmless=("1",))),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--dp", "--dp-size"), Foreign(ONE_DEVICE, harmless=("1",))),
    **dict.fromkeys(("--tensor-split", "-ts", "--split-mode", "-sm"), Foreign(ONE_DEVICE)),
    **dict.fromkeys(
        ("--n-gpu-layers", "--gpu-layers", "-ngl"),
        _ignored("Layers cannot be assigned to devices: see --device.", takes_value=True),
    ),
    **dict.fromkeys(
        ("--cache-type-k", "-ctk", "--cache-type-v", "-ctv"),
        Foreign("Set the type of the KV cache with --kv-cache-dtype (auto or int8)."),
    ),
    "--enable-lora": Foreign(NO_LORA, takes_value=False),
    "--lora-modules": Foreign(NO_LORA),
    "--lora-paths": Foreign(NO_LORA),
    "--lora": Foreign(NO_LORA),
    "--speculative-config": Foreign(NO_SPECULATION),
    "--speculative-algorithm": Foreign(NO_SPECULATION),
    **dict.fromkeys(("--model-draft", "-md"), Foreign(NO_SPECULATION)),
    "--chat-template": Foreign(TEMPLATE),
    "--chat-template-file": Foreign(TEMPLATE),
    "--tokenizer": Foreign(TEMPLATE),
    "--tokenizer-path": Foreign(TEMPLATE),
    "--trust-remote-code": Foreign("ebbtide runs no code from model repositories.", takes_value=False),
    "--revision": Foreign("ebbtide serves the newest revision that `ebbtide pull` fetched."),
    "--num-gpu-blocks-override": Foreign("Set the size of the KV pool with --max-total-tokens (in tokens)."),
    "--cpu-offload-gb": Foreign("The weights stay on the device.", harmless=("0",)),
    **dict.fromkeys(("--kv-offloading-size", "--hicache-size"), Foreign(HOST_TIER)),
    "--enable-hierarchical-cache": Foreign(HOST_TIER, takes_value=False),
    "--download-dir": Foreign("Set the environment variable HF_HUB_CACHE instead."),
    **dict.fromkeys(("--threads-batch", "-tb"), Foreign("All steps use --num-threads threads.")),
    "--enable-prefix-caching": _ignored("The prefix cache is on by default."),
    "--enable-chunked-prefill": _ignored("Prompts are always computed in chunks."),
    "--enable-auto-tool-choice": _ignored("Tool calls are always parsed."),
    "--enable-metrics": _ignored("/metrics is always served."),
    "--metrics": _ignored("/metrics is always served."),
    "--jinja": _ignored("Chat templates are always Jinja templates."),
    "--cont-batching": _ignored("Continuous batching is always on."),
    "-cb": _ignored("Continuous batching is always on."),
    **dict.fromkeys(("--flash-attn", "-fa"), _ignored("See --attention-backend.", takes_value=True)),
    "--disable-log-requests": _ignored("Requests are logged only with --log-requests."),
    "--disable-log-stats": Foreign("To turn off the log line about the load, use --log-interval 0.", takes_value=False),
    "--decode-log-interval": Foreign("The log line about the load is written every --log-interval seconds."),
    "--skip-server-warmup": _ignored("The server sends no requests to itself."),
}


@dataclass(frozen=True, slots=True)
class Translation:
    """A command line with ebbtide's flags.

    Attributes:
        words: the command line with the foreign flags renamed or removed.
        notes: a message for stderr about each foreign flag.
        refusal: an error message about a flag that cannot be ignored; "" if there is none.
    """

    words: list[str]
    notes: list[str]
    refusal: str = ""


def translate(words: Sequence[str]) -> Translation:
    """Translate the arguments of ``ebbtide serve``."""
    done, notes = list[str](), list[str]()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in RENAMED:
            notes.append(f"{flag} is {RENAMED[flag]} here.")
            done.append(RENAMED[flag] + equals + value)
        elif flag in MODEL:
            notes.append(f"{flag} is not needed: the model is a positional argument here.")
            done += [value] if equals else []
        elif flag in WITHOUT_EQUIVALENT:
            known = WITHOUT_EQUIVALENT[flag]
            if known.takes_value and not equals and rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            if known.harmless is not None and value not in known.harmless:
                return Translation(done, notes, f"{flag} has no equivalent. {known.says}")
            notes.append(f"{flag} is ignored. {known.says}")
        else:
            done.append(word)
    return Translation(done, notes)
