"""Chat templates in the manner of well-known families, and a tokenizer that renders them. Written for these tests."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ebbtide.tokenization.tokenizer import FastTokenizer

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)
TOOLS = "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
HERMES = (
    TOOLS + "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|end|>{% endfor %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif opens %}<think>\n{% endif %}"
)
# Joins the arguments as a text, and takes calls only from a message without content (libraries leave out what is none).
DEEPSEEK = (
    TOOLS + "{% for m in messages %}{% if m.role == 'assistant' and (m.content is undefined or m.content is none) %}"
    "{% for call in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\n```json\n' + call.function.arguments }}"
    "{% endfor %}{% elif m.role == 'assistant' %}{{ m.content }}{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}"
    "{% endfor %}"
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS]["
    "{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}"
    "{{ call.function | tojson }}{% endfor %}]{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
LLAMA = (
    "{% for tool in tools or [] %}{{ tool | tojson(indent=4) }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
)
# Writes arguments as Python does when they are an object, and once more as JSON when they are a text.
UNUSABLE = (
    TOOLS + "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls %}{{ call.function.name }}"
    "{% if call.function.arguments is string %}{{ call.function.arguments | tojson }}"
    "{% else %}{{ call.function.arguments }}{% endif %}{% endfor %}{% endfor %}"
)


def tokenizer_with(template: str | None, control: tuple[str, ...] = ("<|end|>",)) -> FastTokenizer:
    """Bytes as tokens, and these control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(control))
    options: dict[str, Any] = {} if template is None else {"chat_template": template}
    return FastTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", **options))
