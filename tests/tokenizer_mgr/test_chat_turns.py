"""In every turn, a session has the tokens that the template renders for the whole conversation, or it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ebbtide.errors import Rejected
from ebbtide.tokenization.model_files import smollm2_path
from ebbtide.tokenization.tokenizer import ChatPrompt, FastTokenizer, SimTokenizer, TextTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of
from ebbtide.tokenizer_mgr.chat_turns import encode_first_turn, encode_next_turn

CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start>", "<end>", "[INST]", "[/INST]", "<|head|>", "<|eot|>"]

CHATML = (  # with a default system message, like Qwen2.5 and SmolLM2
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (  # trims; no line break after the end of a turn
    "<s>{% for m in messages %}<|head|>{{ m.role }}<|head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|head|>\n\n{% endif %}"
)
GEMMA = (  # no system role, strict alternation
    "<s>{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>model\n{% endif %}"
)
MISTRAL = (  # the system message is part of the last user message
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}<s>"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST]{{ system if loop.last else '' }}{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
PLAIN = (  # no control tokens, like Vicuna
    "{% for m in messages %}{{ 'USER' if m.role == 'user' else 'ASSISTANT' }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
REASONING = (  # drops empty reasoning from all but the last message, like Qwen3
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENED = (  # the generation prompt differs from the text before earlier messages, like R1
    "<s>{% for m in messages %}{{ '[INST]' if m.role == 'user' else '[/INST]' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[/INST]<think>\n{% endif %}"
)
SHOUTING = CHATML.replace("{{ m.content }}", "{{ m.content | lower }}")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def with_template(template: str) -> FastTokenizer:
    """A tokenizer of one token per byte and the control tokens of all the templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*CONTROL, *alphabet]
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(CONTROL)
    return FastTokenizer(parts_of(PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)))


@pytest.fixture(scope="module")
def smollm2() -> FastTokenizer:
    path = smollm2_path()
    if not path.is_file():
        pytest.skip("the packaged model is not pulled")
    return FastTokenizer(parts_of(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)))


def follow(tokens: list[int], tokenizer: TextTokenizer, chat: ChatPrompt) -> list[int]:
    """Return the session with the messages of a further turn, joined as the scheduler joins them."""
    turn = encode_next_turn(tokenizer, chat)
    dropped = next((n for n in range(turn.head, 0, -1) if tokens[-n:] == turn.ids[:n]), 0)
    return tokens + turn.ids[dropped:]


def check_conversation(
    tokenizer: TextTokenizer, first: list[dict[str, Any]], answers: list[str], ends: list[list[int]], **options: Any
) -> None:
    """Play ``first`` and one question per output. ends: the tokens with which the model ended each output."""
    chat = ChatPrompt(first, **options)
    tokens = encode_first_turn(tokenizer, chat)
    messages = [*first]
    for number, (answer, end) in enumerate(zip(answers, ends, strict=True)):
        tokens = tokens + tokenizer.encode(answer, add_special_tokens=False) + end
        question = user(f"{number} and then? <|im_end|></s>")
        messages += [assistant(answer), question]
        tokens = follow(tokens, tokenizer, replace(chat, messages=[question]))
        assert tokens == tokenizer.encode_chat(replace(chat, messages=messages))


@pytest.mark.parametrize(
    ("template", "end"),
    [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot|>"), (GEMMA, "<end>"), (MISTRAL, "</s>"), (PLAIN, "\n")],
)
def test_a_session_has_the_tokens_of_the_rendered_conversation(template: str, end: str) -> None:
    tokenizer = with_template(template)
    stop = tokenizer.encode(end, add_special_tokens=False)
    # Ended by the end token, by length or a stop string, and by length at tokens that look like an end.
    check_conversation(tokenizer, [user("Hi <|im_end|>!")], ["yes.", "cut of", "cut<"], [stop, [], []])


@pytest.mark.parametrize("template", [CHATML, LLAMA3])
def test_a_system_message_keeps_its_place(template: str) -> None:
    tokenizer = with_template(template)
    check_conversation(tokenizer, [system("Short."), user("Hi")], ["a", "b"], [[], []])
    tokens = encode_first_turn(tokenizer, ChatPrompt([user("Hi")])) + tokenizer.encode("yo", add_special_tokens=False)
    later = [system("Now shout."), user("Again")]
    whole = ChatPrompt([user("Hi"), assistant("yo"), *later])
    assert follow(tokens, tokenizer, ChatPrompt(later)) == tokenizer.encode_chat(whole)


@pytest.mark.slow
def test_the_packaged_model_has_one_system_message(smollm2: FastTokenizer) -> None:
    [end] = smollm2.vocabulary.eos_ids
    check_conversation(smollm2, [user("Hello")], ["Hi there!", "The tide", "comes"], [[end], [], [end]])
    ids = encode_next_turn(smollm2, ChatPrompt([user("Why?")])).ids
    expected = "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert ids == smollm2.encode(expected, add_special_tokens=False)


def test_the_simulated_model_takes_part() -> None:
    tokenizer = SimTokenizer()
    [end] = tokenizer.vocabulary.eos_ids
    check_conversation(tokenizer, [system("s"), user("é")], ["ja", "nein", ""], [[end], [], [end]])


def test_the_tools_of_the_first_turn_are_not_written_again() -> None:
    tokenizer = with_template("{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML)
    tools = [{"type": "function", "function": {"name": "tide_at", "parameters": {}}}]
    check_conversation(tokenizer, [system("s"), user("Hi")], ["a", "b"], [[], []], tools=tools)
    result = {"role": "tool", "content": "3.2 m", "tool_call_id": "c1"}
    ids = encode_next_turn(tokenizer, ChatPrompt([result], tools=tools)).ids
    expected = "<|im_end|>\n<|im_start|>tool\n3.2 m<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(expected, add_special_tokens=False)


def test_the_last_new_message_can_stay_open() -> None:
    tokenizer = with_template(CHATML)
    chat = ChatPrompt([user("Go"), assistant("Sure,")], add_generation_prompt=False, continue_final_message=True)
    expected = "<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\nSure,"
    assert encode_next_turn(tokenizer, chat).ids == tokenizer.encode(expected, add_special_tokens=False)
    assert encode_first_turn(tokenizer, chat) == tokenizer.encode_chat(chat)


@pytest.mark.parametrize("template", [REASONING, SHOUTING])
def test_a_template_that_rewrites_answers_is_refused_from_the_first_turn_on(template: str) -> None:
    tokenizer = with_template(template)
    for encode in (encode_first_turn, encode_next_turn):
        with pytest.raises(Rejected, match="template") as refusal:
            encode(tokenizer, ChatPrompt([user("Hi")]))
        assert (refusal.value.status, refusal.value.code) == (400, "session_chat_unsupported")


def test_a_template_that_moves_the_system_message_is_refused_when_there_is_one() -> None:
    tokenizer = with_template(MISTRAL)
    for encode in (encode_first_turn, encode_next_turn):
        with pytest.raises(Rejected, match="template"):
            encode(tokenizer, ChatPrompt([system("Short."), user("Hi")]))


def test_a_generation_prompt_that_history_does_not_keep_is_refused() -> None:
    with pytest.raises(Rejected, match="template"):
        encode_first_turn(with_template(OPENED), ChatPrompt([user("Hi")]))


def test_a_conversation_that_the_template_refuses_is_refused() -> None:
    with pytest.raises(Rejected, match="alternate"):
        encode_next_turn(with_template(GEMMA), ChatPrompt([user("Hi"), user("you")]))


def test_history_that_is_sent_again_is_refused() -> None:
    with pytest.raises(Rejected, match="only the new messages"):
        encode_next_turn(with_template(CHATML), ChatPrompt([assistant("yo"), user("Hi")]))
