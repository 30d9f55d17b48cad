// Vercel's AI SDK: texts, streams, a tool and an object, over chats and responses.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { hello, city, result, weather } = JSON.parse(process.env.EBBTIDE_EXPECTED);
const baseURL = `${process.env.EBBTIDE_URL}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "ebbtide", baseURL, apiKey: "none", supportsStructuredOutputs: true });
const schema = z.object({ city: z.string(), days: z.number() });
for (const model of [compatible("sim"), openai.chat("sim"), openai.responses("sim")]) {
  assert.equal((await generateText({ model, prompt: "Say hello." })).text, hello);
  let text = "";
  for await (const part of streamText({ model, prompt: "Say hello." }).textStream) text += part;
  assert.equal(text, hello);
  const calls = [];
  const get_weather = tool({
    description: "Look up the weather.",
    inputSchema: schema,
    execute: async (given) => {
      calls.push(given);
      return result;
    },
  });
  const prompt = "What is the weather?";
  // Without store: false the SDK refers to earlier items by id, and the daemon stores none.
  const providerOptions = { openai: { store: false } };
  const tools = { get_weather };
  const answer = await generateText({ model, prompt, tools, stopWhen: stepCountIs(3), providerOptions });
  assert.equal(answer.text, weather);
  assert.deepEqual(calls, [city]);
  assert.deepEqual((await generateObject({ model, prompt: "Fill in the form.", schema })).object, city);
}
