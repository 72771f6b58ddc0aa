// The AI SDK through each of its providers: the same calls, whichever dialect carries them.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateObject, generateText } from "ai";
import { jsonSchema, stepCountIs, streamObject, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";
import { COUNT, MISSING, PARIS, PERSON, SUNNY } from "./story.mjs";
import { counts, idle, inTime, isPerson, model, tell, thrown, url } from "./story.mjs";

const Person = z.object({ name: z.string().max(12), age: z.int() });
const apiKey = "none";
const compatible = createOpenAICompatible({
  name: "shoal",
  baseURL: `${url}/v1`,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey });
const ollama = createOllama({ baseURL: `${url}/api` });

const City = z.object({ city: z.string().describe("The city") });
const plainCity = jsonSchema({
  type: "object",
  properties: { city: { type: "string", description: "The city" } },
  required: ["city"],
});

/** A tool that gives the weather and notes which cities it was asked for. */
function weatherTool(heard, inputSchema = plainCity, strict = false) {
  return tool({
    description: "Get the weather for a city",
    inputSchema,
    strict,
    execute: async ({ city }) => {
      heard.push(city);
      return SUNNY;
    },
  });
}

/** The calls of one provider; `more` are its own fields for an answer without thinking. */
function calls(named, more = {}) {
  const plain = { model: named(model), temperature: 0, maxRetries: 0, maxOutputTokens: 300 };
  const fields = { ...plain, ...more };
  return {
    async "generateText"() {
      const { text, finishReason, usage } = await generateText({ ...fields, prompt: COUNT });
      counts(text);
      assert.equal(finishReason, "stop");
      assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
    },
    async "streamText"() {
      const whole = await generateText({ ...fields, prompt: COUNT });
      const stream = streamText({ ...fields, prompt: COUNT });
      const pieces = [];
      for await (const piece of stream.textStream) pieces.push(piece);
      assert.equal(pieces.join(""), whole.text);
      assert.ok(pieces.length > 5);
      assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
      assert.equal(await stream.finishReason, "stop");
    },
    async "tool loop"() {
      const heard = [];
      const tools = { get_weather: weatherTool(heard) };
      const stopWhen = stepCountIs(4);
      const answer = await generateText({ ...fields, prompt: PARIS, tools, stopWhen });
      assert.ok(answer.text.includes(SUNNY), answer.text);
      assert.deepEqual(heard, ["Paris"]);
      assert.equal(answer.steps.length, 2);
    },
    async "tool loop streamed"() {
      const heard = [];
      const tools = { get_weather: weatherTool(heard) };
      const stream = streamText({ ...fields, prompt: PARIS, tools, stopWhen: stepCountIs(4) });
      assert.ok((await stream.text).includes(SUNNY));
      assert.deepEqual(heard, ["Paris"]);
      assert.equal((await stream.steps)[0].finishReason, "tool-calls");
    },
    async "strict tool"() {
      const heard = [];
      const tools = { get_weather: weatherTool(heard, City, true) };
      await generateText({ ...fields, prompt: PARIS, tools });
      assert.deepEqual(heard, ["Paris"]);
    },
    async "forced tool"() {
      const tools = { get_weather: tool({ inputSchema: City }) };
      const forced = { tools, toolChoice: { type: "tool", toolName: "get_weather" } };
      const { toolCalls } = await generateText({ ...fields, prompt: COUNT, ...forced });
      assert.equal(toolCalls[0].toolName, "get_weather");
      assert.equal(typeof toolCalls[0].input.city, "string");
    },
    async "generateObject"() {
      const { object } = await generateObject({ ...fields, schema: Person, prompt: PERSON });
      isPerson(object);
    },
    async "streamObject"() {
      const stream = streamObject({ ...fields, schema: Person, prompt: PERSON });
      const parts = [];
      for await (const part of stream.partialObjectStream) parts.push(part);
      isPerson(await stream.object);
      assert.deepEqual(parts.at(-1), await stream.object);
    },
    async "Output.object"() {
      const output = Output.object({ schema: Person });
      isPerson((await generateText({ ...fields, output, prompt: PERSON })).output);
    },
    async "a conversation with a system prompt"() {
      const messages = [
        { role: "user", content: "Hello" },
        { role: "assistant", content: "Hello! How can I help?" },
        { role: "user", content: COUNT },
      ];
      const instructions = "You are a helpful assistant.";
      counts((await generateText({ ...fields, instructions, messages })).text);
    },
    async "aborted"() {
      const story = { ...fields, maxOutputTokens: 3000 };
      await inTime(async () => {
        const end = new AbortController();
        const abortSignal = end.signal;
        const stream = streamText({ ...story, prompt: "Tell me a story.", abortSignal });
        let pieces = 0;
        const kinds = [];
        for await (const part of stream.fullStream) {
          kinds.push(part.type);
          if (part.type === "text-delta" && ++pieces === 3) end.abort();
        }
        assert.equal(kinds.at(-1), "abort");
      });
      await idle();
    },
    async "errors"() {
      const unknown = await thrown(
        generateText({ ...fields, model: named(MISSING), prompt: "Hi" }),
      );
      assert.ok(APICallError.isInstance(unknown), `${unknown}`);
      assert.equal(unknown.statusCode, 404);
      assert.match(unknown.responseBody, /no-such-model/);
      const long = await thrown(generateText({ ...fields, prompt: "word ".repeat(9000) }));
      assert.ok(APICallError.isInstance(long), `${long}`);
      assert.equal(long.statusCode, 400);
      assert.equal(long.isRetryable, false);
    },
  };
}

const unthinking = (name, settings) => ({ providerOptions: { [name]: settings } });
await tell(
  "ai, @ai-sdk/openai-compatible",
  "@ai-sdk/openai-compatible",
  calls((name) => compatible(name), unthinking("shoal", { reasoningEffort: "none" })),
);
await tell("ai, @ai-sdk/openai responses", "@ai-sdk/openai", calls((name) => openai(name)));
await tell("ai, @ai-sdk/openai chat", "@ai-sdk/openai", calls((name) => openai.chat(name)));

// This provider sends `strict` for models of names that it knows, and leaves it out for others.
const { "strict tool": _, ...messages } = calls((name) => anthropic(name));
await tell("ai, @ai-sdk/anthropic", "@ai-sdk/anthropic", messages);

// This provider puts the temperature where Ollama has no such field, and Ollama knows neither a
// forced nor a strict tool.
const options = { temperature: 0, num_predict: 300 };
const own = calls((name) => ollama(name), unthinking("ollama", { think: false, options }));
delete own["forced tool"];
delete own["strict tool"];
await tell("ai, ollama-ai-provider-v2", "ollama-ai-provider-v2", own);
