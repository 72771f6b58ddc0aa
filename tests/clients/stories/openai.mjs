// The official OpenAI client for JavaScript: chat completions, completions and responses.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { COUNT, MISSING, PARIS, PERSON, SUNNY } from "./story.mjs";
import { busy, counts, idle, isPerson, model, tell, thrown, url } from "./story.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const Person = z.object({ name: z.string().max(12), age: z.int() });
const greedy = { model, temperature: 0, reasoning_effort: "none" };
const quiet = { model, temperature: 0, reasoning: { effort: "none" } };
const asked = (content) => [{ role: "user", content }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", description: "The city" } },
  required: ["city"],
  additionalProperties: false,
};
const weather = { name: "get_weather", description: "Get the weather for a city", parameters };

function weatherTool(heard) {
  const told = ({ city }) => {
    heard.push(city);
    return SUNNY;
  };
  return { type: "function", function: { ...weather, function: told, parse: JSON.parse } };
}

async function abandon(stream, noted = async () => {}) {
  let pieces = 0;
  for await (const _ of stream) {
    pieces += 1;
    if (pieces !== 3) continue;
    await noted();
    stream.controller.abort();
  }
  assert.ok(pieces >= 3 && pieces < 1000, `${pieces} pieces came of a stream cut after 3`);
  await idle();
}

const chat = {
  async "models"() {
    const names = [];
    for await (const found of client.models.list()) names.push(found.id);
    assert.ok(names.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async "chat, whole"() {
    const answer = await client.chat.completions.create({ ...greedy, messages: asked(COUNT) });
    counts(answer.choices[0].message.content);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.object, "chat.completion");
    const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
    assert.equal(prompt_tokens + completion_tokens, total_tokens);
    assert.ok(answer._request_id);
  },
  async "chat, streamed"() {
    const fields = { ...greedy, messages: asked(COUNT) };
    const whole = await client.chat.completions.create(fields);
    const stream_options = { include_usage: true };
    const pieces = [];
    let usage = null;
    for await (const chunk of await client.chat.completions.create({
      ...fields,
      stream: true,
      stream_options,
    })) {
      usage = chunk.usage ?? usage;
      if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
    }
    assert.equal(pieces.join(""), whole.choices[0].message.content);
    assert.ok(pieces.length > 5);
    assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async "chat, streaming helper"() {
    const runner = client.chat.completions.stream({ ...greedy, messages: asked(COUNT) });
    const deltas = [];
    runner.on("content", (delta) => deltas.push(delta));
    const content = await runner.finalContent();
    counts(content);
    assert.equal(deltas.join(""), content);
  },
  async "chat, tool loop"() {
    const heard = [];
    const runner = client.chat.completions.runTools({
      ...greedy,
      messages: asked(PARIS),
      tools: [weatherTool(heard)],
    });
    assert.ok((await runner.finalContent()).includes(SUNNY));
    assert.deepEqual(heard, ["Paris"]);
  },
  async "chat, tool loop streamed"() {
    const heard = [];
    const runner = client.chat.completions.runTools({
      ...greedy,
      stream: true,
      messages: asked(PARIS),
      tools: [weatherTool(heard)],
    });
    assert.ok((await runner.finalContent()).includes(SUNNY));
    assert.deepEqual(heard, ["Paris"]);
  },
  async "chat, parsed"() {
    const response_format = zodResponseFormat(Person, "person");
    const fields = { ...greedy, messages: asked(PERSON), response_format };
    const answer = await client.chat.completions.parse(fields);
    isPerson(answer.choices[0].message.parsed);
    const streamed = await client.chat.completions.stream(fields).finalChatCompletion();
    isPerson(streamed.choices[0].message.parsed);
  },
  async "chat, aborted"() {
    const messages = asked("Tell me a story.");
    const fields = { ...greedy, messages, stream: true, max_tokens: 3000 };
    await abandon(await client.chat.completions.create({ ...fields, ignore_eos: true }), busy);
  },
  async "chat, errors"() {
    const unknown = await thrown(
      client.chat.completions.create({ ...greedy, model: MISSING, messages: asked("Hi") }),
    );
    assert.ok(unknown instanceof OpenAI.NotFoundError);
    assert.equal(unknown.code, "model_not_found");
    const bad = await thrown(
      client.chat.completions.create({ ...greedy, temperature: 9, messages: asked("Hi") }),
    );
    assert.ok(bad instanceof OpenAI.BadRequestError);
    assert.equal(bad.param, "temperature");
    const messages = asked("word ".repeat(9000));
    for (const stream of [false, true]) {
      const long = await thrown(client.chat.completions.create({ ...greedy, messages, stream }));
      assert.ok(long instanceof OpenAI.BadRequestError);
      assert.equal(long.code, "context_length_exceeded");
    }
  },
  async "completions"() {
    const fields = { model, prompt: "1, 2, 3, 4,", temperature: 0, max_tokens: 12 };
    const whole = await client.completions.create(fields);
    let text = "";
    for await (const chunk of await client.completions.create({ ...fields, stream: true })) {
      text += chunk.choices[0]?.text ?? "";
    }
    assert.ok(text.length > 0);
    assert.equal(text, whole.choices[0].text);
  },
};

const responses = {
  async "responses, whole"() {
    const answer = await client.responses.create({ ...quiet, input: COUNT });
    counts(answer.output_text);
    assert.equal(answer.status, "completed");
    assert.ok(answer.usage.output_tokens > 0);
  },
  async "responses, streaming helper"() {
    const stream = client.responses.stream({ ...quiet, input: COUNT });
    let text = "";
    stream.on("response.output_text.delta", (event) => (text += event.delta));
    const answer = await stream.finalResponse();
    counts(answer.output_text);
    assert.equal(text, answer.output_text);
  },
  async "responses, parsed"() {
    const text = { format: zodTextFormat(Person, "person") };
    const answer = await client.responses.parse({ ...quiet, input: PERSON, text });
    isPerson(answer.output_parsed);
    const stream = client.responses.stream({ ...quiet, input: PERSON, text });
    isPerson((await stream.finalResponse()).output_parsed);
  },
  async "responses, tool loop without a store"() {
    const tools = [{ type: "function", ...weather, strict: true }];
    const input = asked(PARIS);
    const fields = { ...quiet, tools, store: false };
    const first = await client.responses.create({ ...fields, input });
    const call = first.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
    input.push(...first.output);
    input.push({ type: "function_call_output", call_id: call.call_id, output: SUNNY });
    const second = await client.responses.create({ ...fields, input });
    assert.ok(second.output_text.includes(SUNNY));
  },
  async "responses, tool loop by previous_response_id"() {
    const tools = [{ type: "function", ...weather, strict: true }];
    const first = await client.responses.create({ ...quiet, tools, input: PARIS });
    const call = first.output.find((item) => item.type === "function_call");
    const input = [{ type: "function_call_output", call_id: call.call_id, output: SUNNY }];
    const previous_response_id = first.id;
    const second = await client.responses.create({ ...quiet, tools, previous_response_id, input });
    assert.ok(second.output_text.includes(SUNNY));
  },
  async "responses, kept and deleted"() {
    const made = await client.responses.create({ ...quiet, input: COUNT });
    assert.equal((await client.responses.retrieve(made.id)).output_text, made.output_text);
    const items = [];
    for await (const item of client.responses.inputItems.list(made.id)) items.push(item);
    assert.equal(items[0].content[0].text, COUNT);
    await client.responses.delete(made.id);
    const gone = await thrown(client.responses.retrieve(made.id));
    assert.ok(gone instanceof OpenAI.NotFoundError);
  },
  async "responses, aborted"() {
    const fields = { ...quiet, input: "Tell me a story.", max_output_tokens: 3000 };
    await abandon(await client.responses.create({ ...fields, stream: true }));
  },
  async "responses, errors"() {
    const unknown = await thrown(client.responses.create({ ...quiet, model: MISSING, input: "Hi" }));
    assert.ok(unknown instanceof OpenAI.NotFoundError);
    const long = await thrown(client.responses.create({ ...quiet, input: "word ".repeat(9000) }));
    assert.ok(long instanceof OpenAI.BadRequestError);
    assert.equal(long.code, "context_length_exceeded");
  },
};

await tell("openai (npm)", "openai", { ...chat, ...responses });
