"""The configuration: frozen, built once by the CLI, one section per process. The CLI's flags are derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .retract_policies import RETRACT_POLICIES
from .tokenization.model_files import ModelFiles
from .tokenization.vocabulary import Vocabulary

PAGE_SIZE = 16  # the default tokens per page
FLASH_PAGE_SIZE = 256  # the default with flash_attn, whose pages must be multiples of it


def option(default: Any, help_text: str, *, flag: str | None = None, metavar: str | None = None, **limits: Any) -> Any:
    """A field that is also a CLI flag.

    flag: the flag's name if it is not ``--field-name``.
    limits: ``within``, an interval such as "(0, 1]", or ``choices``, all valid strings.
    """
    return field(default=default, metadata={"help": help_text, "flag": flag, "metavar": metavar, **limits})


def secret(help_text: str, *, metavar: str) -> Any:
    """A field that is also a CLI flag and is left out of the repr."""
    return field(default=None, repr=False, metadata={"help": help_text, "flag": None, "metavar": metavar})


def option_list(help_text: str, *, flag: str, metavar: str, shown: bool = True) -> Any:
    """A field that is a repeatable CLI flag. shown: if False, the repr does not contain it."""
    return field(default=(), repr=shown, metadata={"help": help_text, "flag": flag, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP front."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "TCP port to listen on; 0 selects a free port", within="[0, 65535]")
    served_model_name: tuple[str, ...] = option_list(
        "the model's name in the API; repeatable: answers contain the first name (default: derived from MODEL)",
        flag="--served-model-name",
        metavar="NAME",
    )
    keep_alive_s: float = option(
        15.0,
        "seconds of silence after which a stream sends a comment line; 0 disables it",
        flag="--sse-keep-alive",
        metavar="S",
        within="[0, 31536000]",
    )
    shutdown_timeout: float = option(
        30.0, "seconds after the first SIGTERM until open requests are aborted", metavar="S", within="[0, 31536000]"
    )
    slow_reader_timeout: float = option(
        60.0,
        "seconds after which a client that has stopped reading its response is disconnected (Linux)",
        metavar="S",
        within="(0, 86400]",
    )
    max_body_bytes: int = option(
        32 * 1024 * 1024, "largest request body; larger ones get 413", within="[1, 1099511627776]"
    )
    incremental_streaming_output: bool = option(
        False, "chunks of /generate contain only the new text instead of all the text so far"
    )
    grammar_timeout: float = option(
        5.0,
        "time limit for compiling a request's grammar or JSON schema, in seconds; then 400",
        metavar="S",
        within="(0, 31536000]",
    )
    tool_call_parser: str = option(
        "auto", "format of tool calls in answers; auto detects it from the chat template", metavar="NAME"
    )
    reasoning_parser: str = option(
        "auto", "format of reasoning in answers, or none; auto detects it from the chat template", metavar="NAME"
    )
    metrics_compat: str = option(
        "", "also export metrics under the names of vllm, sglang, or vllm,sglang", metavar="NAMES"
    )
    clamp_max_tokens: Literal["none", "messages", "all"] = option(
        "messages",
        "routes on which a max_tokens that exceeds the context is reduced to fit; other routes answer it with 400",
    )
    max_client_priority: int = option(
        0, "highest priority that a request may ask for, -100 to 100", metavar="N", within="[-100, 100]"
    )


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Access."""

    api_key: tuple[str, ...] = option_list(
        "API key that requests must send; repeatable; prefer EBBTIDE_API_KEY or a file, because flags are visible",
        flag="--api-key",
        metavar="KEY",
        shown=False,
    )
    api_key_file: str | None = option(None, "file with one API key per line", metavar="FILE")
    admin_api_key: str | None = secret(
        "key for the admin routes; also in EBBTIDE_ADMIN_API_KEY (default: every API key is accepted)", metavar="KEY"
    )
    isolate_keys: bool = option(False, "share the prefix cache only between requests with the same key")
    allowed_origins: tuple[str, ...] = option_list(
        "origin of web pages that may use the API, or * for all; repeatable",
        flag="--allowed-origins",
        metavar="ORIGIN",
    )
    disable_docs: bool = option(False, "serve neither /docs nor /openapi.json")
    disable_console: bool = option(False, "serve no console at / and no /console")
    root_path: str = option("", "path under which a proxy exposes this server", metavar="PATH")
    ssl_certfile: str | None = option(None, "serve HTTPS with this certificate or chain, PEM", metavar="FILE")
    ssl_keyfile: str | None = option(
        None, "private key of the certificate (default: in --ssl-certfile)", metavar="FILE"
    )
    ssl_keyfile_password: str | None = secret("password of the private key", metavar="TEXT")
    ssl_ca_certs: str | None = option(
        None, "require client certificates signed by one of these authorities, PEM", metavar="FILE"
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of a request or client."""

    max_connections: int | None = option(
        None,
        "limit on open connections; further ones get 503, except probes (default: from the open-file limit)",
        metavar="N",
        within="[1, 2147483647]",
    )
    receive_timeout: float = option(
        60.0,
        "seconds within which a request must arrive, else 408; no limit if it arrives at 16 KiB/s or faster",
        metavar="S",
        within="(0, 31536000]",
    )
    max_requests_per_key: int | None = option(
        None,
        "limit on open requests per API key; further ones get 429 (default: no limit)",
        metavar="N",
        within="[1, 2147483647]",
    )
    queue_timeout: float | None = option(
        None,
        "seconds until a request must start to run, else 504; 429 at once if the expected wait is longer "
        "(default: no limit)",
        metavar="S",
        within="[0, 31536000]",
    )
    request_timeout: float | None = option(
        None, "seconds until a request must end, else 504 (default: no limit)", metavar="S", within="(0, 31536000]"
    )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Admission, chunking and the prefix cache."""

    chunked_prefill_size: int | None = option(
        None,
        "prefill tokens per step (default: 256 on the CPU, 2048 on CUDA)",
        metavar="TOKENS",
        within="[1, 2147483647]",
    )
    schedule_policy: Literal["fcfs", "lpm", "priority"] = option(
        "fcfs",
        "order of the waiting queue: first come first served, longest prefix match (bounded waiting), or priority",
    )
    retraction_risk: float | None = option(
        None,
        "accepted probability that running requests outgrow the KV pool; a smaller value means fewer retractions and "
        "more waiting (default: 0.03 to the power of --schedule-conservativeness)",
        metavar="P",
        within="(0, 1)",
    )
    schedule_conservativeness: float = option(
        1.0,
        "exponent of the default --retraction-risk; a larger value means fewer retractions and more waiting",
        within="(0, 1000]",
    )
    disable_radix_cache: bool = option(False, "do not reuse the KV of earlier prompts")
    retract_policy: str = option(
        "cost",
        f"request that is retracted first: {', '.join(policy.first for policy in RETRACT_POLICIES.values())}",
        choices=tuple(RETRACT_POLICIES),
    )
    max_retractions: int = option(
        3,
        "retractions after which a request is never retracted again; 0: never retract, -1: no limit",
        within="[-1, 2147483647]",
    )
    max_queued_requests: int | None = option(
        None,
        "limit on waiting requests; further ones get 429 (default: no limit)",
        metavar="N",
        within="[1, 2147483647]",
    )
    memory_check: Literal["strict", "quarantine", "off"] = option(
        "quarantine",
        "if the page accounting is inconsistent: end the process, quarantine the pages (stop using them), or do not "
        "check",
    )
    kv_events: str | None = option(
        None, "address on which to publish prefix cache events, such as tcp://127.0.0.1:5557", metavar="ADDRESS"
    )
    kv_events_replay: str | None = option(
        None, "address on which to answer requests for missed events, such as tcp://127.0.0.1:5558", metavar="ADDRESS"
    )
    enable_streaming_session: bool = option(False, "sessions keep the KV of their turns between requests")
    max_sessions: int = option(
        1000, "limit on open sessions; further ones get 429", metavar="N", within="[1, 2147483647]"
    )
    max_sessions_per_key: int | None = option(
        None, "limit on open sessions per API key (default: no separate limit)", metavar="N", within="[1, 2147483647]"
    )
    session_timeout: float = option(
        600.0, "idle seconds after which a session is closed", metavar="S", within="(0, 31536000]"
    )
    test_retract_interval: int = option(
        0, "for tests: retract a running request every K steps; 0 disables it", metavar="K", within="[0, 2147483647]"
    )


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """The model, its device and its memory."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", "device of the model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "element type of weights and KV cache; auto: on CUDA the stored type; on the CPU bfloat16, but float32 if the "
        "model has no compiled code and the CPU cannot compute bfloat16",
    )
    tp: int = option(
        1,
        "tensor parallelism: the number of processes that share the weights, each with a GPU of its own on CUDA",
        metavar="N",
        within="[1, 64]",
    )
    num_threads: int = option(
        0,
        "threads of a step on the CPU; 0: the usable cores, one fewer if there are more than 4, and fewer while other "
        "processes keep them busy",
        metavar="N",
        within="[0, 1024]",
    )
    deterministic: bool = option(
        False,
        "start only if a request's logits are bitwise identical alone, in any batch and when recomputed",
    )
    quantization: Literal["auto", "none", "int8"] = option(
        "auto",
        "weights of the Llama family on the CPU: auto keeps GGUF's quantized weights as they are, none dequantizes "
        "them to --dtype, int8 also quantizes weights that are not quantized",
    )
    load_format: Literal["auto", "dummy"] = option(
        "auto", "dummy: random weights for measurements, from a folder with only config.json and a tokenizer"
    )
    attention_backend: str = option("auto", "attention implementation; auto selects the fastest available one")
    context_length: int | None = option(
        None, "maximum length of prompt + output (default: the model's)", metavar="TOKENS", within="[2, 2147483647]"
    )
    max_total_tokens: int | None = option(
        None,
        "size of the KV pool (default: from free memory, at most 4 GiB on the CPU)",
        metavar="TOKENS",
        within="[1, 2147483647]",
    )
    kv_offload_gb: float = option(
        0.0,
        "host memory for the KV of retracted requests, in GiB; 0: recompute it",
        metavar="GB",
        within="[0, 1048576]",
    )
    mem_fraction_static: float = option(0.85, "share of free memory for weights and KV pool", within="(0, 1]")
    page_size: int | None = option(
        None,
        "tokens per KV page (default: 16; 256 with --attention-backend flash_attn)",
        metavar="TOKENS",
        within="[1, 2147483647]",
    )
    disable_cuda_graph: bool = option(False, "on CUDA: launch the kernels of a decode step one by one")
    cuda_graph_max_bs: int | None = option(
        None,
        "on CUDA: largest number of decode rows that run as a captured graph (default: 256)",
        metavar="N",
        within="[1, 1048576]",
    )
    disable_overlap_schedule: bool = option(
        False, "do not prepare a step before the result of the step before it is known"
    )
    max_running_requests: int = option(256, "maximum number of running requests", metavar="N", within="[1, 1048576]")
    swa_full_tokens_ratio: float = option(
        0.25,
        "tokens of the KV pool for layers with a sliding window, per token of the other layers' pool",
        within="(0, 1]",
    )
    sim_step_ms: float = option(0.0, "MODEL sim: milliseconds per step", metavar="MS", within="[0, 31536000]")
    sim_script: str | None = option(
        None, "MODEL sim: JSON file of {prompt prefix: output}, or [{contains, output}]", metavar="FILE"
    )
    sim_pools: str = option("full", "MODEL sim: KV pools, full or full,swa:WINDOW", metavar="POOLS")

    @property
    def tokens_per_page(self) -> int:
        """``page_size``, or the default of the attention backend."""
        return self.page_size or (FLASH_PAGE_SIZE if self.attention_backend == "flash_attn" else PAGE_SIZE)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The embedding model, beside MODEL or alone."""

    embedding_model: str | None = option(
        None,
        "folder or Hub id of a sentence-transformers model, for embeddings or for reranking; without MODEL, the "
        "server has only this model",
        metavar="MODEL",
    )
    embedding_device: Literal["cpu", "cuda"] = option("cpu", "device of the embedding model")
    embedding_batch_tokens: int | None = option(
        None,
        "maximum number of tokens, padding included, per batch of the embedding model (default: 1024 on the CPU, "
        "16384 on CUDA)",
        metavar="TOKENS",
        within="[1, 2147483647]",
    )
    embedding_matryoshka: bool = option(
        False, "accept any 'dimensions'; for an embedding model that was trained for shortened vectors"
    )


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """Watchdog and supervision."""

    watchdog_timeout: float = option(
        300.0,
        "seconds with work but no progress after which the engine dumps its state and exits",
        metavar="S",
        within="(0, 31536000]",
    )
    soft_watchdog_timeout: float | None = option(
        None,
        "seconds with work but no progress after which the engine dumps its state",
        metavar="S",
        within="(0, 31536000]",
    )
    heartbeat_timeout: float = option(
        20.0,
        "seconds without a process's heartbeat after which /ready returns 503",
        metavar="S",
        within="(0, 31536000]",
    )
    progress_alarm: float = option(
        30.0,
        "seconds with waiting requests and no admission after which the reason is logged",
        metavar="S",
        within="(0, 31536000]",
    )
    load_timeout: float = option(
        1800.0, "time limit for loading and compiling, in seconds", metavar="S", within="(0, 31536000]"
    )
    restart_on_failure: int = option(
        0, "limit on engine restarts after a failure; HTTP stays up meanwhile", metavar="N", within="[0, 2147483647]"
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logging, the same in every process."""

    log_level: Literal["debug", "info", "warning", "error"] = option("info", "lowest severity that is logged")
    log_format: Literal["text", "json"] = option(
        "text", "format of the log: one line of text or one JSON object per event"
    )
    log_interval: float = option(
        10.0,
        "seconds between two log lines about the load while requests are running or waiting; 0 disables them",
        metavar="S",
        within="[0, 31536000]",
    )
    log_requests: bool = option(
        False, "log one line at the end of each request: ids, tokens, times, retractions, status; never its text"
    )


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Traces."""

    otlp_endpoint: str | None = option(
        None,
        "send a trace of each request to this OpenTelemetry collector, such as http://127.0.0.1:4318; needs the extra "
        "otel",
        metavar="URL",
    )
    otlp_protocol: Literal["auto", "http/protobuf", "grpc"] = option(
        "auto",
        "protocol of --otlp-endpoint; auto: the value of OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or "
        "OTEL_EXPORTER_OTLP_PROTOCOL, otherwise http/protobuf",
    )


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The whole configuration of ``ebbtide serve``.

    Attributes:
        model: the argument MODEL; "" if there is only an embedding model.
    """

    model: str = "smollm2"
    server: ServerConfig = field(default_factory=ServerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    log: LogConfig = field(default_factory=LogConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)


@dataclass(frozen=True, slots=True)
class Addresses:
    """ZMQ addresses of one daemon. Each process binds its own address and connects to those of other processes.

    The address of a process that this daemon does not have is "".
    """

    front: str
    scheduler: str
    detokenizer: str
    encoder: str = ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The tensor-parallel ranks of one engine. The scheduler process is rank 0.

    Attributes:
        rendezvous: path of a file through which the ranks find each other.
        addresses: ZMQ addresses of the ranks 1, 2, …
        timeout_s: limit for the connection of the ranks and for each operation between them, in seconds.
    """

    rendezvous: str
    addresses: tuple[str, ...]
    timeout_s: float

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.addresses) + 1


@dataclass(frozen=True, slots=True)
class SchedulerSection:
    """The configuration of the scheduler process, sent to the new process once, before it loads the model.

    Attributes:
        dump_path: path of the file for its dumps.
        records_phases: True to send ``PhaseChanges``, because requests are traced.
        ranks: None without tensor parallelism.
    """

    files: ModelFiles
    scheduler: SchedulerConfig
    runner: RunnerConfig
    log: LogConfig
    addresses: Addresses
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    dump_path: str = ""
    records_phases: bool = False
    ranks: Ranks | None = None


@dataclass(frozen=True, slots=True)
class RankSection:
    """The configuration of a tensor-parallel rank other than 0, sent once before it starts. rank: its number."""

    files: ModelFiles
    runner: RunnerConfig
    log: LogConfig
    ranks: Ranks
    rank: int


@dataclass(frozen=True, slots=True)
class DetokenizerSection:
    """The configuration of the detokenizer process, sent to the new process once, before its loop starts."""

    vocabulary: Vocabulary
    log: LogConfig
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class EncoderSection:
    """The configuration of the encoder process, sent to the new process once, before it loads the model.

    Attributes:
        max_queued: limit on waiting inputs; None for no limit.
    """

    files: ModelFiles
    encoder: EncoderConfig
    log: LogConfig
    addresses: Addresses
    max_queued: int | None = None
