"""The anthropic package: messages, whole and streamed, and its tool runner."""

import anthropic
from trip import ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, ROOT, WEATHER, calls, check, get_weather

client = anthropic.Anthropic(base_url=ROOT, api_key="none")
hello = [{"role": "user", "content": ASK_HELLO}]
check(client.messages.create(model=MODEL, max_tokens=500, messages=hello).content[0].text, HELLO)
with client.messages.stream(model=MODEL, max_tokens=500, messages=hello) as stream:
    check("".join(stream.text_stream), HELLO)


@anthropic.beta_tool
def weather(city: str, days: int) -> str:
    """Look up the weather.

    Args:
        city: the city
        days: how many days
    """
    return get_weather(city, days)


weather.name = "get_weather"
search = {"type": "web_search_20250305", "name": "web_search"}
runner = client.beta.messages.tool_runner(
    model=MODEL, max_tokens=500, tools=[weather, search], messages=[{"role": "user", "content": ASK_WEATHER}]
)
check(runner.until_done().content[0].text, WEATHER)
check(calls, [CITY])
