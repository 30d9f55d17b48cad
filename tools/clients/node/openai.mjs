// The openai package: a chat, a stream, and its tool runner over chats; a response with a tool.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { hello, city, result, weather } = JSON.parse(process.env.EBBTIDE_EXPECTED);
const client = new OpenAI();
const model = "sim";
const messages = [{ role: "user", content: "Say hello." }];
const chat = await client.chat.completions.create({ model, messages });
assert.equal(chat.choices[0].message.content, hello);
let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.equal(text, hello);

const parameters = { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } };
const calls = [];
const runner = client.chat.completions.runTools({
  model,
  stream: true,
  messages: [{ role: "user", content: "What is the weather?" }],
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        parameters,
        parse: JSON.parse,
        function: (given) => {
          calls.push(given);
          return result;
        },
      },
    },
  ],
});
assert.equal(await runner.finalContent(), weather);
assert.deepEqual(calls, [city]);

const tools = [{ type: "function", name: "get_weather", parameters, strict: false }, { type: "web_search" }];
const input = [{ role: "user", content: "What is the weather?" }];
const stream = client.responses.stream({ model, input, tools });
const first = await stream.finalResponse();
const call = first.output.find((item) => item.type === "function_call");
assert.deepEqual(JSON.parse(call.arguments), city);
input.push(...first.output, { type: "function_call_output", call_id: call.call_id, output: result });
assert.equal((await client.responses.create({ model, input, tools })).output_text, weather);
