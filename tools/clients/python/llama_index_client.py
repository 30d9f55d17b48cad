"""LlamaIndex: a completion, a stream and an agent with a tool."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from trip import ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, V1, WEATHER, calls, check, get_weather


async def main() -> None:
    """Run the model and an agent."""
    model = OpenAILike(
        model=MODEL,
        api_base=V1,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=32_000,
    )
    check(model.chat([ChatMessage(role="user", content=ASK_HELLO)]).message.content, HELLO)
    check("".join(part.delta or "" for part in model.stream_complete(ASK_HELLO)), HELLO)
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=model)
    check(str(await agent.run(ASK_WEATHER)), WEATHER)
    check(calls, [CITY])


asyncio.run(main())
