"""LangChain and LangGraph: an agent with a tool over chats, responses and Anthropic's messages, and a typed output."""

import pydantic
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from trip import ASK_FORM, ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, ROOT, V1, WEATHER, calls, check, get_weather


class City(pydantic.BaseModel):
    """A form."""

    city: str
    days: int


models = [
    ChatOpenAI(model=MODEL, base_url=V1, api_key="none"),
    ChatOpenAI(model=MODEL, base_url=V1, api_key="none", use_responses_api=True),
    ChatAnthropic(model=MODEL, base_url=ROOT, api_key="none", max_tokens=500),
]
for model in models:
    calls.clear()
    check(model.invoke(ASK_HELLO).text, HELLO)
    check("".join(chunk.text for chunk in model.stream(ASK_HELLO)), HELLO)
    agent = create_agent(model, [get_weather])
    check(agent.invoke({"messages": [("user", ASK_WEATHER)]})["messages"][-1].text, WEATHER)
    check(calls, [CITY])
    check(model.with_structured_output(City, method="json_schema").invoke(ASK_FORM), City(**CITY))
