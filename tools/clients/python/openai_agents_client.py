"""OpenAI's agents SDK: an agent with a tool, over chats and responses, whole and streamed."""

import asyncio

import openai
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from trip import ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, V1, WEATHER, calls, check, get_weather


async def main() -> None:
    """Run both kinds of models."""
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=V1, api_key="none")
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        calls.clear()
        agent = Agent(name="a", model=kind(MODEL, client), tools=[function_tool(get_weather)])
        check((await Runner.run(agent, ASK_HELLO)).final_output, HELLO)
        streamed = Runner.run_streamed(agent, ASK_WEATHER)
        async for _ in streamed.stream_events():
            pass
        check(streamed.final_output, WEATHER)
        check(calls, [CITY])


asyncio.run(main())
