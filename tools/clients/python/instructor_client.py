"""Instructor: a form by a forced call, by a JSON schema, and by JSON mode."""

import instructor
import openai
import pydantic
from trip import ASK_FORM, CITY, MODEL, V1, check


class City(pydantic.BaseModel):
    """A form."""

    city: str
    days: int


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
    client = instructor.from_openai(openai.OpenAI(base_url=V1, api_key="none"), mode=mode)
    found = client.chat.completions.create(
        model=MODEL, response_model=City, messages=[{"role": "user", "content": ASK_FORM}], max_retries=0
    )
    check(found.model_dump(), CITY)
