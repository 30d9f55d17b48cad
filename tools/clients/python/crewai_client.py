"""CrewAI: one agent with one task."""

from crewai import LLM, Agent, Crew, Task
from trip import ASK_HELLO, HELLO, MODEL, V1, check

model = LLM(model=f"openai/{MODEL}", base_url=V1, api_key="none")
check(model.call(ASK_HELLO), HELLO)
agent = Agent(role="greeter", goal="greet", backstory="You greet.", llm=model)
task = Task(description="Say hello to the crew.", expected_output="A greeting.", agent=agent)
check(Crew(agents=[agent], tasks=[task]).kickoff().raw, HELLO)
