"""The tested clients: their packages, the script of their round trip, and the answers of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_answers import CLAUDE_CODE, CODEX
from answers import CITY, EXPECTED, Rule, rule


@dataclass(frozen=True, slots=True)
class Client:
    """One client.

    Attributes:
        name: its name on the command line.
        packages: as pip or npm names them, the client first.
        script: the program for its round trip, relative to this folder; ends with 0 if the answers were right.
        is_node: the packages are npm packages.
        rules: answers of the model to this client, which precede the common ones.
        flags: of the daemon.
        variables: of the client's process.
    """

    name: str
    packages: tuple[str, ...]
    script: str
    is_node: bool = False
    rules: tuple[Rule, ...] = ()
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def _python(name: str, *packages: str, rules: tuple[Rule, ...] = (), flags: tuple[str, ...] = ()) -> Client:
    return Client(name, packages, f"python/{name.replace('-', '_')}_client.py", rules=rules, flags=flags)


# Forced calls are a JSON list.
FINAL_RESULT = rule(
    json.dumps([{"name": "final_result", "arguments": CITY}], ensure_ascii=False), "Give the final result"
)
# The formats that these frameworks ask for in their prompts.
CREW = rule(f"Thought: I greet.\nFinal Answer: {EXPECTED['hello']}", "Final Answer")
SIGNATURE = rule("[[ ## number ## ]]\n42\n\n[[ ## completed ## ]]", "How many?")
WHOLE_FILE = rule("made.txt\n```\nebb 👩‍👩‍👧\n```\n", "Edit the file")

CODEX_PACKAGES = ("@openai/codex",)
TABLE = (
    Client("codex", CODEX_PACKAGES, "agents/codex.py", is_node=True, rules=CODEX),
    # The names of OpenAI's models decide which tools Codex offers: apply_patch and tool_search, and code mode.
    Client(
        "codex-patch",
        CODEX_PACKAGES,
        "agents/codex_patch.py",
        is_node=True,
        rules=CODEX,
        flags=("--served-model-name", "gpt-5.5"),
    ),
    Client(
        "codex-code",
        CODEX_PACKAGES,
        "agents/codex_code.py",
        is_node=True,
        rules=CODEX,
        flags=("--served-model-name", "gpt-6.2-sol"),
    ),
    Client("claude-code", ("@anthropic-ai/claude-code",), "agents/claude_code.py", is_node=True, rules=CLAUDE_CODE),
    Client("openai-node", ("openai", "zod"), "node/openai.mjs", is_node=True),
    Client("anthropic-node", ("@anthropic-ai/sdk",), "node/anthropic.mjs", is_node=True),
    Client(
        "vercel-ai", ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"), "node/vercel_ai.mjs", is_node=True
    ),
    _python("openai", "openai"),
    _python("anthropic", "anthropic"),
    _python("instructor", "instructor"),
    _python("pydantic-ai", "pydantic-ai-slim[openai,anthropic]", rules=(FINAL_RESULT,)),
    _python("openai-agents", "openai-agents"),
    _python("langgraph", "langgraph", "langchain", "langchain-openai", "langchain-anthropic"),
    _python("llama-index", "llama-index-llms-openai-like"),
    _python("langchain-embeddings", "langchain-openai", "numpy"),
    _python("llama-index-embeddings", "llama-index-embeddings-openai"),
    _python("open-webui-rag", "requests"),
    _python("haystack", "haystack-ai"),
    _python("autogen", "autogen-agentchat", "autogen-ext[openai]"),
    _python("crewai", "crewai", rules=(CREW,)),
    _python("dspy", "dspy", rules=(SIGNATURE,)),
    _python("litellm", "litellm[proxy]"),
    _python("llm", "llm"),
    _python("aider", "aider-chat", rules=(WHOLE_FILE,)),
)
CLIENTS = {client.name: client for client in TABLE}
