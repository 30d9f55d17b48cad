"""DSPy: the model by itself, and a signature with a typed output."""

import dspy
from trip import ASK_HELLO, HELLO, MODEL, V1, check

model = dspy.LM(f"openai/{MODEL}", api_base=V1, api_key="none", cache=False)
check(model(ASK_HELLO), [HELLO])
dspy.configure(lm=model)
check(dspy.Predict("question -> number: int")(question="How many?").number, 42)
