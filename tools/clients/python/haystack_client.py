"""Haystack: its generator, and an agent with a tool."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from trip import ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, V1, WEATHER, calls, check, get_weather

model = OpenAIChatGenerator(model=MODEL, api_base_url=V1, api_key=Secret.from_token("none"))
check(model.run([ChatMessage.from_user(ASK_HELLO)])["replies"][0].text, HELLO)
chunks: list[str] = []
model.run([ChatMessage.from_user(ASK_HELLO)], streaming_callback=lambda chunk: chunks.append(chunk.content or ""))
check("".join(chunks), HELLO)
agent = Agent(chat_generator=model, tools=[create_tool_from_function(get_weather)])
check(agent.run(messages=[ChatMessage.from_user(ASK_WEATHER)])["messages"][-1].text, WEATHER)
check(calls, [CITY])
