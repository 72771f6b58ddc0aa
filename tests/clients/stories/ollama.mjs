// The official Ollama client for JavaScript.

import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { COUNT, MISSING, PARIS, PERSON, SUNNY } from "./story.mjs";
import { counts, idle, inTime, isPerson, model, tell, thrown, url } from "./story.mjs";

const client = new Ollama({ host: url });
const plain = { model, think: false, options: { temperature: 0, num_predict: 300 } };
const asked = (content) => [{ role: "user", content }];
const city = { type: "string", description: "The city" };
const parameters = { type: "object", properties: { city }, required: ["city"] };
const description = "Get the weather for a city";
const tools = [{ type: "function", function: { name: "get_weather", description, parameters } }];
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};

async function toolLoop(chat) {
  const messages = asked(PARIS);
  const called = await chat({ ...plain, tools, messages });
  const [call] = called.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(call.function.arguments, { city: "Paris" });
  messages.push(called, { role: "tool", tool_name: "get_weather", content: SUNNY });
  assert.ok((await chat({ ...plain, tools, messages })).content.includes(SUNNY));
}

await tell("ollama (npm)", "ollama", {
  async "list, show, ps, version"() {
    const { models } = await client.list();
    assert.ok(models.some((found) => found.model.startsWith(model)));
    const shown = await client.show({ model });
    assert.ok(shown.capabilities.includes("tools"));
    assert.equal(shown.model_info["general.architecture"], "qwen3");
    assert.ok((await client.ps()).models.length >= 1);
    assert.ok((await client.version()).version);
  },
  async "chat, whole"() {
    const answer = await client.chat({ ...plain, messages: asked(COUNT) });
    counts(answer.message.content);
    assert.equal(answer.done_reason, "stop");
    assert.ok(answer.eval_count > 0 && answer.eval_duration > 0);
  },
  async "chat, streamed"() {
    const whole = await client.chat({ ...plain, messages: asked(COUNT) });
    const lines = [];
    for await (const line of await client.chat({ ...plain, messages: asked(COUNT), stream: true })) {
      lines.push(line);
    }
    assert.equal(lines.map((line) => line.message.content).join(""), whole.message.content);
    assert.ok(lines.length > 5 && lines.at(-1).done);
  },
  async "chat, thinking"() {
    const answer = await client.chat({ ...plain, think: true, messages: asked("What is 2 + 3?") });
    assert.ok(answer.message.thinking.length > 0);
    assert.ok(!answer.message.content.includes("<think>"));
  },
  async "chat, tool loop"() {
    await toolLoop(async (fields) => (await client.chat(fields)).message);
  },
  async "chat, tool loop streamed"() {
    await toolLoop(async (fields) => {
      const message = { role: "assistant", content: "", tool_calls: [] };
      for await (const line of await client.chat({ ...fields, stream: true })) {
        message.content += line.message.content;
        message.tool_calls.push(...(line.message.tool_calls ?? []));
      }
      return message;
    });
  },
  async "chat, a schema"() {
    const answer = await client.chat({ ...plain, messages: asked(PERSON), format: schema });
    isPerson(JSON.parse(answer.message.content));
  },
  async "generate"() {
    const whole = await client.generate({ ...plain, prompt: COUNT });
    counts(whole.response);
    let text = "";
    for await (const line of await client.generate({ ...plain, prompt: COUNT, stream: true })) {
      text += line.response;
    }
    assert.equal(text, whole.response);
  },
  async "chat, aborted"() {
    const own = new Ollama({ host: url });
    const options = { temperature: 0, num_predict: 3000 };
    const messages = asked("Tell me a story.");
    const format = { type: "array", items: { type: "integer", minimum: 1000000 }, minItems: 200 };
    const cut = async () => {
      const stream = await own.chat({ ...plain, options, messages, format, stream: true });
      let pieces = 0;
      for await (const _ of stream) if (++pieces === 3) own.abort();
    };
    const error = await inTime(() => thrown(cut()));
    assert.equal(error.name, "AbortError");
    await idle();
  },
  async "errors"() {
    const messages = asked("Hi");
    const unknown = await thrown(client.chat({ ...plain, model: MISSING, messages }));
    assert.equal(unknown.name, "ResponseError");
    assert.equal(unknown.status_code, 404);
    assert.match(unknown.message, /no-such-model/);
    const bad = await thrown(client.chat({ ...plain, messages, format: "yaml" }));
    assert.equal(bad.status_code, 400);
    assert.match(bad.message, /format/);
  },
});
