"""AutoGen: an assistant that calls a tool and reflects on the result."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from trip import ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, V1, WEATHER, calls, check, get_weather


async def main() -> None:
    """Run the model and an assistant."""
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": True,
    }
    model = OpenAIChatCompletionClient(model=MODEL, base_url=V1, api_key="none", model_info=info)
    check((await model.create([UserMessage(content=ASK_HELLO, source="user")])).content, HELLO)
    agent = AssistantAgent("a", model, tools=[get_weather], reflect_on_tool_use=True)
    check((await agent.run(task=ASK_WEATHER)).messages[-1].content, WEATHER)
    check(calls, [CITY])
    await model.close()


asyncio.run(main())
