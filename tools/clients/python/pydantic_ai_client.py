"""Pydantic AI: an agent with a tool over chats, responses and Anthropic's messages, and a typed output."""

import pydantic
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from trip import ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, ROOT, V1, WEATHER, calls, check, get_weather


class City(pydantic.BaseModel):
    """A form."""

    city: str
    days: int


provider = OpenAIProvider(base_url=V1, api_key="none")
models = [
    OpenAIChatModel(MODEL, provider=provider),
    OpenAIResponsesModel(MODEL, provider=provider),
    AnthropicModel(MODEL, provider=AnthropicProvider(base_url=ROOT, api_key="none")),
]
for model in models:
    calls.clear()
    check(Agent(model).run_sync(ASK_HELLO).output, HELLO)
    check(Agent(model, tools=[get_weather]).run_sync(ASK_WEATHER).output, WEATHER)
    check(calls, [CITY])
    check(Agent(model, output_type=City).run_sync("Give the final result.").output, City(**CITY))
