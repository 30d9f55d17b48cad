// The Anthropic package: a message, a stream, and a conversation with a tool.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const { hello, city, result, weather } = JSON.parse(process.env.EBBTIDE_EXPECTED);
const client = new Anthropic();
const options = { model: "sim", max_tokens: 500 };
const messages = [{ role: "user", content: "Say hello." }];
assert.equal((await client.messages.create({ ...options, messages })).content[0].text, hello);
assert.equal(await client.messages.stream({ ...options, messages }).finalText(), hello);

const tools = [
  {
    name: "get_weather",
    input_schema: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
  },
  { type: "web_search_20250305", name: "web_search" },
];
const turns = [{ role: "user", content: "What is the weather?" }];
const called = await client.messages.stream({ ...options, messages: turns, tools }).finalMessage();
const use = called.content.find((block) => block.type === "tool_use");
assert.deepEqual(use.input, city);
turns.push(
  { role: "assistant", content: called.content },
  { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: result }] },
);
assert.equal((await client.messages.create({ ...options, messages: turns, tools })).content[0].text, weather);
