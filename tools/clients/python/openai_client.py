"""The openai package: chats and responses, whole and streamed, with a tool and a form."""

import json

import openai
import pydantic
from trip import ASK_FORM, ASK_HELLO, ASK_WEATHER, CITY, HELLO, MODEL, V1, WEATHER, check, get_weather

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


class City(pydantic.BaseModel):
    """A form."""

    city: str
    days: int


client = openai.OpenAI(base_url=V1, api_key="none")
hello = [{"role": "user", "content": ASK_HELLO}]
check(client.chat.completions.create(model=MODEL, messages=hello).choices[0].message.content, HELLO)
chunks = client.chat.completions.create(model=MODEL, messages=hello, stream=True)
check("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HELLO)
form = client.chat.completions.parse(
    model=MODEL, messages=[{"role": "user", "content": ASK_FORM}], response_format=City
)
check(form.choices[0].message.parsed, City(**CITY))

tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
messages = [{"role": "user", "content": ASK_WEATHER}]
called = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
[call] = called.tool_calls
result = get_weather(**json.loads(call.function.arguments))
messages += [called, {"role": "tool", "tool_call_id": call.id, "content": result}]
check(client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message.content, WEATHER)

flat = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}, {"type": "web_search"}]
items = [{"role": "user", "content": ASK_WEATHER}]
with client.responses.stream(model=MODEL, input=items, tools=flat) as stream:
    stream.until_done()
    output = stream.get_final_response().output
items += output
[call] = [item for item in output if item.type == "function_call"]
items.append(
    {"type": "function_call_output", "call_id": call.call_id, "output": get_weather(**json.loads(call.arguments))}
)
check(client.responses.create(model=MODEL, input=items, tools=flat).output_text, WEATHER)
check(client.responses.parse(model=MODEL, input=ASK_FORM, text_format=City).output_parsed, City(**CITY))

texts = ["the tide goes out", "bread is baked in an oven"]
vectors = [entry.embedding for entry in client.embeddings.create(model=MODEL, input=texts).data]
check([len(vector) for vector in vectors], [64, 64])
floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float").data
check([entry.embedding for entry in floats], vectors)
