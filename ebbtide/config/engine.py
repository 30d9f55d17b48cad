"""The sections of the engine: the scheduler, the model, and the embedding model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..retract_policies import RETRACT_POLICIES
from .options import option

PAGE_SIZE = 16  # the default tokens per page
FLASH_PAGE_SIZE = 256  # the default with flash_attn, whose pages must be multiples of it


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Admission, chunking and the prefix cache."""

    chunked_prefill_size: int | None = option(
        None,
        "prefill tokens per step (default: 256 on the CPU, 2048 on CUDA)",
        metavar="TOKENS",
        within="[1, 2147483647]",
    )
    schedule_policy: Literal["fcfs", "lpm", "priority", "fair"] = option(
        "fcfs",
        "order of the waiting queue: fcfs: first come first served; lpm: longest prefix match with bounded waiting; "
        "priority; fair: by priority, and API keys take turns, by tokens, among requests of the same priority",
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
    state_checkpoint_interval: int = option(
        256,
        "models with recurrent layers: output tokens between two states that are kept for the prefix cache",
        metavar="TOKENS",
        within="[1, 2147483647]",
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
    kv_cache_dtype: Literal["auto", "int8"] = option(
        "auto",
        "element type of the KV cache; auto: as --dtype; int8 (Llama family in bfloat16 on the CPU): with a "
        "scale for each token and head, nearly twice as many tokens in the same memory",
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
        False, "do not prepare a step before the result of the previous step is known"
    )
    max_running_requests: int = option(256, "maximum number of running requests", metavar="N", within="[1, 1048576]")
    swa_full_tokens_ratio: float | None = option(
        None,
        "tokens of the KV pool for layers with a sliding window, per token of the other layers' pool (default: 0.2, or "
        "1.5 times the window divided by 8192 if that is more, but at most 1)",
        metavar="RATIO",
        within="(0, 1]",
    )
    disable_hybrid_swa_memory: bool = option(
        False, "layers with a sliding window keep the KV of all tokens, in one pool with the other layers"
    )
    max_states: int | None = option(
        None,
        "models with recurrent layers: states in memory, of running requests and in the prefix cache (default: twice "
        "--max-running-requests)",
        metavar="N",
        within="[1, 2147483647]",
    )
    sim_step_ms: float = option(0.0, "MODEL sim: milliseconds per step", metavar="MS", within="[0, 31536000]")
    sim_decode_row_us: float = option(
        0.0, "MODEL sim: microseconds added to a step per decoding row", metavar="US", within="[0, 1000000000]"
    )
    sim_prefill_token_us: float = option(
        0.0, "MODEL sim: microseconds added to a step per prefilled token", metavar="US", within="[0, 1000000000]"
    )
    sim_context_token_ns: float = option(
        0.0, "MODEL sim: nanoseconds added to a step per token of context read", metavar="NS", within="[0, 1000000000]"
    )
    sim_script: str | None = option(
        None, "MODEL sim: JSON file of {prompt prefix: output}, or [{contains, output}]", metavar="FILE"
    )
    sim_pools: str = option(
        "full", "MODEL sim: KV pools, full, and after it swa:WINDOW, mamba:SLOTS or both", metavar="POOLS"
    )

    @property
    def tokens_per_page(self) -> int:
        """``page_size``, or the default of the attention backend."""
        return self.page_size or (FLASH_PAGE_SIZE if self.attention_backend == "flash_attn" else PAGE_SIZE)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The embedding model, with MODEL or alone."""

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
