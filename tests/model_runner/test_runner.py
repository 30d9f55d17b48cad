"""The whole runner compared with transformers, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.plan import PageCopies, PlanItem, RowInit, StepPlan

from .checkpoints import write_checkpoint
from .driver import Driver, load_runner
from .families import NATIVE
from .reference import greedy, load_reference

GREEDY = SamplingParams(max_tokens=20, temperature=0)
# One token; shorter and longer than a page; longer than the sliding window and than several chunks.
LENGTHS = (1, 7, 16, 33, 75)


def random_prompts(lengths: tuple[int, ...] = LENGTHS, vocab_size: int = 512) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(scope="module")
def truth(tiny: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The output of transformers for the random prompts; computed once per family."""
    known: dict[str, list[list[int]]] = {}

    def outputs_of(family: str) -> list[list[int]]:
        if family not in known:
            model = load_reference(tiny(family))
            known[family] = [greedy(model, prompt, GREEDY.max_tokens) for prompt in random_prompts()]
        return known[family]

    return outputs_of


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("family", NATIVE)
def test_greedy_output_is_that_of_transformers(
    family: str, page_size: int, tiny: Callable[[str], Path], truth: Callable[[str], list[list[int]]]
) -> None:
    runner = load_runner(tiny(family), page_size=page_size)
    prompts = random_prompts()
    assert Driver(runner).generate(prompts, GREEDY) == truth(family)
    assert Driver(runner, chunk=10, own_samples=False).generate(prompts, GREEDY) == truth(family)
    assert [Driver(runner, chunk=3).generate([prompt], GREEDY)[0] for prompt in prompts] == truth(family)


@pytest.mark.parametrize("change", ["llama3", "yarn", "linear", "biases"])
def test_variants_of_llama_match_transformers(change: str, tmp_path: Path) -> None:
    scaling = {"rope_type": change, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    if change == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if change == "linear":
        del scaling["original_max_position_embeddings"]
    config = {"attention_bias": True, "mlp_bias": True} if change == "biases" else {"rope_parameters": scaling}
    folder = changed_checkpoint(tmp_path, **config)
    model = load_reference(folder)
    prompts = random_prompts((5, 40))
    assert Driver(load_runner(folder), chunk=16).generate(prompts, GREEDY) == [greedy(model, p, 20) for p in prompts]


def changed_checkpoint(folder: Path, **changes: object) -> Path:
    """A tiny Llama with a changed configuration and matching weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    write_checkpoint(folder, "llama")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return folder


# ---------------------------------------------------------------------- SmolLM2


@pytest.fixture(scope="module")
def smollm2_runner(smollm2: Path) -> ModelRunner:
    return load_runner(smollm2)


def test_smollm2_answers_as_in_transformers(
    smollm2: Path, smollm2_runner: ModelRunner, smollm2_reference: PreTrainedModel
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    questions = ["Why is the sky blue?", "Write a poem about tides and boats.", "1 + 1 ="]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    outputs = Driver(smollm2_runner, chunk=24).generate(prompts, GREEDY)
    assert outputs == [greedy(smollm2_reference, prompt, 20) for prompt in prompts]


def test_smollm2_ends_its_turns_with_im_end(smollm2: Path, smollm2_runner: ModelRunner) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    assert smollm2_runner.info.eos_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


# ---------------------------------------------------------------------- one runner, many rows


@pytest.fixture(scope="module")
def llama(tiny: Callable[[str], Path]) -> ModelRunner:
    return load_runner(tiny("llama"), max_total_tokens=1024, max_running_requests=8)


def init(prompt_len: int, **params: object) -> RowInit:
    return RowInit(SamplingParams(max_tokens=8, **({"temperature": 0.0} | params)), prompt_len)  # type: ignore[arg-type]


def run(runner: ModelRunner, *items: PlanItem) -> list[list[int]]:
    runner.submit(StepPlan(0, list(items)))
    return runner.collect().tokens


def test_nan_in_unused_pages_changes_no_output(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"), max_total_tokens=256, page_size=16)
    attention: Any = runner._attention
    attention.pool.data.fill_(float("nan"))  # a freed page may contain nan
    prompts = random_prompts((5, 20))
    clean = load_runner(tiny("llama"), max_total_tokens=256, page_size=16)
    assert Driver(runner).generate(prompts, GREEDY) == Driver(clean).generate(prompts, GREEDY)


def test_a_readmitted_row_keeps_no_state_of_its_previous_request(llama: ModelRunner) -> None:
    prompt = random_prompts((20,))[0]
    item = PlanItem(0, 0, prompt, [3, 4], 0, True, init(20))
    first = run(llama, item)
    run(llama, PlanItem(0, 0, prompt[::-1], [5, 6], 0, True, init(20, temperature=1.5, seed=4, min_tokens=7)))
    assert run(llama, item) == first


def test_tokens_already_in_the_pool_need_not_be_computed_again(llama: ModelRunner) -> None:
    prompt = random_prompts((40,))[0]
    whole = run(llama, PlanItem(0, 0, prompt, [0, 1, 2], 0, True, init(40)))
    assert run(llama, PlanItem(5, 32, prompt[32:], [0, 1, 7], 0, True, init(40))) == whole


def test_an_item_that_samples_nothing_yields_no_token(llama: ModelRunner) -> None:
    prompt = random_prompts((10,))[0]
    assert run(llama, PlanItem(0, 0, prompt[:4], [0], 0, False, init(10))) == []
    assert len(run(llama, PlanItem(0, 4, prompt[4:]))) == 1


def test_bfloat16_stays_close_to_float32(tiny: Callable[[str], Path]) -> None:
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=0)
    prompts = random_prompts((30, 9))
    runs = [
        Driver(load_runner(tiny("llama"), dtype=dtype), chunk=8).run(prompts, params)
        for dtype in ("float32", "bfloat16")
    ]
    for exact, rounded in zip(*runs, strict=True):
        assert exact.logprobs[0] is not None
        assert rounded.logprobs[0] is not None
        assert rounded.logprobs[0].logprob == pytest.approx(exact.logprobs[0].logprob, abs=0.3)


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([PlanItem(-1, 0, None, [0])], "There is no row -1"),
        ([PlanItem(8, 0, [5], [0], 0, True, init(1))], "There is no row 8"),
        ([PlanItem(0, 0, [5], [64], 0, True, init(1))], "outside the pool"),
        ([PlanItem(0, 0, [5], [-1], 0, True, init(1))], "outside the pool"),
        ([PlanItem(0, 0, [5], [0], 32, True, init(1))], "do not continue"),
        ([PlanItem(0, 0, [5] * 17, [0], 0, True, init(17))], "do not fit its 1 pages"),
        ([PlanItem(0, 0, [], [0], 0, True, init(1))], "do not fit"),
        ([PlanItem(0, 0, None, [0], 0, True, init(1))], "no sample of its own"),
        ([PlanItem(0, 0, [5, 512], [0], 0, True, init(2))], "outside 0..511"),
        ([PlanItem(0, 0, [-1], [0], 0, True, init(1))], "outside 0..511"),
    ],
)
def test_an_item_that_reaches_outside_fails(llama: ModelRunner, items: list[PlanItem], sentence: str) -> None:
    llama.submit(StepPlan(0, items))
    result = llama.collect()
    assert result.tokens == [[]]
    [failure] = result.failures
    assert sentence in failure.problem
    assert not failure.invalid_logits


@pytest.mark.parametrize(
    ("items", "sentence"),
    [([PlanItem(0, 0, [5], [0], 0, True, init(1))] * 2, "two items of one row"), ([], "is empty")],
)
def test_a_plan_that_is_invalid_as_a_whole_is_refused(llama: ModelRunner, items: list[PlanItem], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        llama.submit(StepPlan(0, items))


def test_page_copies_are_refused_and_not_ignored(llama: ModelRunner) -> None:
    item = PlanItem(0, 0, [5], [0], 0, True, init(1))
    with pytest.raises(PlanError, match="is out of range"):
        llama.submit(StepPlan(0, [item], copies=PageCopies(to_host=[0, 0])))


def test_plans_are_collected_once(llama: ModelRunner) -> None:
    plan = StepPlan(7, [PlanItem(0, 0, [5], [0], 0, True, init(1))])
    llama.submit(plan)
    with pytest.raises(PlanError, match="uncollected"):
        llama.submit(plan)
    assert llama.collect().number == 7
    with pytest.raises(PlanError, match="no plan to collect"):
        llama.collect()


# ---------------------------------------------------------------------- at start


def test_the_runner_reports_its_sizes(tiny: Callable[[str], Path]) -> None:
    info = load_runner(tiny("llama"), max_total_tokens=100, page_size=16, context_length=300).info
    assert (info.num_pages, info.page_size, info.context_length, info.vocab_size) == (7, 16, 300, 512)
    assert info.pool_bytes == 7 * 16 * 3 * 2 * 2 * 16 * 4
    assert (info.device, info.dtype, info.eos_token_ids) == ("cpu", "float32", (2,))


def test_the_default_pool_is_bounded_on_the_cpu(tiny: Callable[[str], Path]) -> None:
    info = load_runner(tiny("llama"), max_total_tokens=None, mem_fraction_static=0.01).info
    assert 0 < info.pool_bytes <= 4 << 30


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"context_length": 513}, "--context-length 513 is not within"),
        ({"max_total_tokens": 10**12}, "--max-total-tokens 1000000000000 needs"),
        ({"max_total_tokens": 0}, "not a valid size"),
        ({"attention_backend": "magic"}, "no attention backend 'magic'"),
        ({"max_total_tokens": None, "mem_fraction_static": 1e-12}, "no memory for a KV pool"),
    ],
)
def test_a_failed_start_states_the_reason(
    tiny: Callable[[str], Path], options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(StartupError, match=sentence):
        load_runner(tiny("llama"), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(StartupError, match="--device cuda needs a CUDA device"):
        load_runner(tiny("llama"), device="cuda")


@pytest.mark.parametrize(
    "change", [{"hidden_act": "gelu"}, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}]
)
def test_a_llama_with_unknown_parts_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StartupError, match="is not supported for llama models"):
        load_runner(tmp_path)
