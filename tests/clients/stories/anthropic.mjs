// The official Anthropic client for JavaScript.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { COUNT, MISSING, PARIS, PERSON, SUNNY } from "./story.mjs";
import { counts, idle, inTime, isPerson, model, tell, thrown, url } from "./story.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const Person = z.object({ name: z.string(), age: z.int() });
const plain = { model, max_tokens: 300, temperature: 0 };
const asked = (content) => [{ role: "user", content }];
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

function weatherTool(heard) {
  return betaZodTool({
    name: "get_weather",
    description: "Get the weather for a city",
    inputSchema: z.object({ city: z.string().describe("The city") }),
    run: ({ city }) => {
      heard.push(city);
      return SUNNY;
    },
  });
}

await tell("@anthropic-ai/sdk (npm)", "@anthropic-ai/sdk", {
  async "models"() {
    const names = [];
    for await (const found of client.models.list()) names.push(found.id);
    assert.ok(names.includes(model));
    assert.equal((await client.models.retrieve(model)).type, "model");
  },
  async "messages, whole"() {
    const answer = await client.messages.create({ ...plain, messages: asked(COUNT) });
    counts(textOf(answer));
    assert.equal(answer.stop_reason, "end_turn");
    assert.ok(answer._request_id);
  },
  async "messages, streaming helper"() {
    const whole = await client.messages.create({ ...plain, messages: asked(COUNT) });
    const stream = client.messages.stream({ ...plain, messages: asked(COUNT) });
    const pieces = [];
    stream.on("text", (piece) => pieces.push(piece));
    const message = await stream.finalMessage();
    assert.equal(pieces.join(""), textOf(whole));
    assert.equal(textOf(message), textOf(whole));
    assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
    assert.ok(pieces.length > 5);
  },
  async "messages, thinking"() {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const fields = { model, max_tokens: 2000, thinking, messages: asked("What is 2 + 3?") };
    const message = await client.messages.stream(fields).finalMessage();
    assert.equal(message.content[0].type, "thinking");
    assert.ok(message.content[0].thinking.length > 0 && message.content[0].signature.length > 0);
    const messages = [...fields.messages, { role: "assistant", content: message.content }];
    messages.push({ role: "user", content: COUNT });
    const next = await client.messages.create({ ...fields, messages });
    assert.equal(next.stop_reason, "end_turn");
  },
  async "messages, tool loop"() {
    for (const stream of [false, true]) {
      const heard = [];
      const tools = [weatherTool(heard)];
      const fields = { ...plain, messages: asked(PARIS), tools, stream };
      const runner = client.beta.messages.toolRunner(fields);
      let last = null;
      for await (const turn of runner) last = stream ? await turn.finalMessage() : turn;
      assert.ok(textOf(last).includes(SUNNY));
      assert.deepEqual(heard, ["Paris"]);
    }
  },
  async "messages, parsed"() {
    const output_config = { format: zodOutputFormat(Person) };
    const fields = { ...plain, messages: asked(PERSON), output_config };
    isPerson((await client.messages.parse(fields)).parsed_output);
  },
  async "count tokens"() {
    const { input_tokens } = await client.messages.countTokens({ model, messages: asked(COUNT) });
    const answer = await client.messages.create({ ...plain, messages: asked(COUNT) });
    const { usage } = answer;
    assert.equal(usage.input_tokens + (usage.cache_read_input_tokens ?? 0), input_tokens);
  },
  async "messages, aborted"() {
    const fields = { ...plain, max_tokens: 3000 };
    const messages = asked("Tell me a story.");
    let pieces = 0;
    const error = await inTime(() => {
      const stream = client.messages.stream({ ...fields, messages });
      pieces = 0;
      stream.on("text", () => ++pieces === 3 && stream.abort());
      return thrown(stream.finalMessage());
    });
    assert.ok(error instanceof Anthropic.APIUserAbortError);
    assert.ok(pieces >= 3 && pieces < 1000, `${pieces} pieces came of a stream cut after 3`);
    await idle();
  },
  async "errors"() {
    const messages = asked("Hi");
    const unknown = await thrown(client.messages.create({ ...plain, model: MISSING, messages }));
    assert.ok(unknown instanceof Anthropic.NotFoundError);
    assert.equal(unknown.error.error.type, "not_found_error");
    const bad = await thrown(client.messages.create({ ...plain, temperature: 9, messages }));
    assert.ok(bad instanceof Anthropic.BadRequestError);
    assert.match(bad.message, /temperature/);
    const long = { ...plain, messages: asked("word ".repeat(9000)) };
    // One after the other: a promise that fails before anything awaits it ends the process.
    const whole = () => client.messages.create(long);
    const streamed = () => client.messages.stream(long).done();
    for (const ask of [whole, streamed]) {
      const error = await thrown(ask());
      assert.ok(error instanceof Anthropic.BadRequestError);
      assert.match(error.message, /prompt is too long: \d+ tokens > \d+ maximum/);
    }
  },
});
