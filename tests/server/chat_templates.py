"""Chat templates in the manner of well-known families, and a tokenizer that renders them. Written for these tests."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ebbtide.tokenization.tokenizer import FastTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of

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
# Joins the arguments as text, and renders calls only if the message has no content (libraries omit empty content).
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
ALTERNATE = (
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)
# Gemma 2: no system message, strict alternation.
NO_SYSTEM_ALTERNATE = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}" + ALTERNATE + "<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "<|assistant|>"
)
# Gemma 3: the system message is the beginning of the first user message.
FIRST_SYSTEM_ALTERNATE = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    + ALTERNATE
    + "<|{{ message.role }}|>{{ first if loop.first }}{{ message.content }}<|end|>"
    "{% endfor %}<|assistant|>"
)
# Mistral: user messages and assistant messages without calls alternate, the system message is in the last user message.
MISTRAL_ALTERNATE = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% set ns = namespace(index=0) %}"
    "{% for m in rest %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and system is defined %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS]["
    "{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}"
    "{{ call.function | tojson }}{% endfor %}]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' %}{{ m.content }}<|end|>{% else %}{{ raise_exception('unknown role') }}{% endif %}"
    "{% endfor %}"
)
# Renders the first system message and silently omits the others.
DROPS_SYSTEMS = (
    "{% if messages[0].role == 'system' %}<|system|>{{ messages[0].content }}<|end|>{% endif %}"
    "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)
# Qwen3-Coder, GLM and others write each argument between tags.
ITEMS = (
    TOOLS + "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls %}"
    "<tool_call><function={{ call.function.name }}>{% for name, value in call.function.arguments | items %}"
    "<parameter={{ name }}>{{ value }}</parameter>{% endfor %}</function></tool_call>{% endfor %}<|end|>{% endfor %}"
    "<|assistant|>"
)
ITEMS_METHOD = ITEMS.replace("call.function.arguments | items", "call.function.arguments.items()")
# Iterates over the characters of a text, and finds nothing under them.
KEYS = ITEMS.replace("name, value in call.function.arguments | items", "name in call.function.arguments").replace(
    "{{ value }}", "{{ call.function.arguments[name] }}"
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
    return FastTokenizer(parts_of(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", **options)))
