// The public HTTP API: requests with this tab's key, streams, and chat requests whose answers fill a
// message.

import { T } from "./texts.js";

const KEPT = "shoal.key";
let key = sessionStorage.getItem(KEPT);

export const hasKey = () => key !== null;

/** Store a key for this tab; null deletes it. */
export function setKey(text) {
  key = text;
  if (text === null) sessionStorage.removeItem(KEPT);
  else sessionStorage.setItem(KEPT, text);
}

/** An error with the API's message; status 0: the API was not reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Return a successful answer. Throws ApiError, and AbortError if the request was aborted. */
export async function ask(method, path, { body, signal, accept } = {}) {
  const headers = {};
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (accept) headers.Accept = accept;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(path, { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, error.message);
  }
  if (!answer.ok) throw new ApiError(answer.status, await refusalOf(answer));
  return answer;
}

async function refusalOf(answer) {
  const text = await answer.text().catch(() => "");
  try {
    return messageOf(JSON.parse(text).error) || text;
  } catch {
    return text || `${answer.status} ${answer.statusText}`;
  }
}

/** Return the message of an `error` in any dialect: a text, or an object with `message`. */
export const messageOf = (error) => (error && typeof error === "object" ? error.message : error);

/** Return the JSON of an answer. Throws ApiError. */
export async function json(method, path, body) {
  return (await ask(method, path, { body })).json();
}

/** Yield the lines of a body as they arrive. */
export async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const parts = (rest + piece.value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Yield the server-sent events of a body as they arrive: `{name, id, data}`, or `{comment}`. */
export async function* events(answer) {
  let name = "message";
  let id = null;
  let data = [];
  for await (const line of lines(answer)) {
    if (line === "" || line === "\r") {
      if (data.length) yield { name, id, data: data.join("\n") };
      name = "message";
      data = [];
    } else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
    else if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trim());
  }
}

// --- chats ----------------------------------------------------------------------------------------

/** Return the body of a chat completion. Throws SyntaxError if the tools are not JSON. */
export function bodyOf(messages, parameters, model) {
  const body = { model, messages: [], stream: true, stream_options: { include_usage: true } };
  if (parameters.system) body.messages.push({ role: "system", content: parameters.system });
  for (const message of messages) {
    if (message.role === "user") body.messages.push({ role: "user", content: message.content });
    else {
      const calls = message.calls.map((call) => ({
        id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
      }));
      body.messages.push({ role: "assistant", content: message.content, ...(calls.length && { tool_calls: calls }) });
      for (const call of message.calls)
        body.messages.push({ role: "tool", tool_call_id: call.id, content: call.result ?? "" });
    }
  }
  for (const name of ["temperature", "top_p", "max_tokens", "seed"])
    if (parameters[name]) body[name] = Number(parameters[name]);
  if (parameters.reasoning_effort) body.reasoning_effort = parameters.reasoning_effort;
  if (parameters.tools?.trim()) body.tools = JSON.parse(parameters.tools);
  return body;
}

/** Send a request and fill `message` with the answer as it arrives; call `changed` after each event.
 * A failure is put into `message.error`. */
export async function stream(request, message, signal, changed) {
  const startedAt = performance.now();
  let firstAt = null;
  const noted = (chunk) => {
    if (chunk.error) throw new ApiError(0, messageOf(chunk.error));
    const now = performance.now();
    if (take(message, chunk)) {
      firstAt ??= now;
      message.ttftS = (firstAt - startedAt) / 1000;
      message.tokens += 1;
      if (now > firstAt) message.rate = ((message.tokens - 1) * 1000) / (now - firstAt);
    }
  };
  try {
    const answer = await ask("POST", "/v1/chat/completions", { body: request, signal });
    let ended = false;
    for await (const event of events(answer)) {
      if (event.comment !== undefined) message.note = event.comment;
      else if (event.data === "[DONE]") ended = true;
      else noted(JSON.parse(event.data));
      changed();
    }
    if (!ended) message.error = T.chat.broken;
  } catch (error) {
    if (signal.aborted) message.finish = "stopped";
    else message.error = error instanceof ApiError ? error.message : T.chat.broken;
  }
  delete message.note;
}

/** Add a chunk to a message; return whether the chunk has generated text or calls. */
function take(message, chunk) {
  if (chunk.usage) {
    message.usage = chunk.usage;
    message.tokens = chunk.usage.completion_tokens;
    message.rate = chunk.timing?.decode_tokens_per_sec ?? message.rate;
  }
  const [choice] = chunk.choices ?? [];
  if (!choice) return false;
  const { delta } = choice;
  message.finish = choice.finish_reason ?? message.finish;
  message.thinking += delta.reasoning_content ?? "";
  message.content += delta.content ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = (message.calls[part.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= part.id ?? "";
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
}
