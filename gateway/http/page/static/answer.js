// One answer: what is asked of a model for a chat, how what comes fills a message, and its text as
// elements. Those are made without markup, so that whatever a model writes stays text.

import { ApiError, ask, events, messageOf } from "./api.js";
import { h } from "./dom.js";
import { T } from "./texts.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^\s*(?:[-*+]|\d{1,3}[.)])\s+/;

/** Return what is asked for. Throws SyntaxError where the tools are no JSON. */
export function bodyOf(messages, parameters, model) {
  const asked = { model, messages: [], stream: true, stream_options: { include_usage: true } };
  if (parameters.system) asked.messages.push({ role: "system", content: parameters.system });
  for (const message of messages) {
    if (message.role === "user") asked.messages.push({ role: "user", content: message.content });
    else {
      const calls = message.calls.map((call) => ({
        id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
      }));
      asked.messages.push({ role: "assistant", content: message.content, ...(calls.length && { tool_calls: calls }) });
      for (const call of message.calls)
        asked.messages.push({ role: "tool", tool_call_id: call.id, content: call.result ?? "" });
    }
  }
  for (const name of ["temperature", "top_p", "max_tokens", "seed"])
    if (parameters[name]) asked[name] = Number(parameters[name]);
  if (parameters.reasoning_effort) asked.reasoning_effort = parameters.reasoning_effort;
  if (parameters.tools?.trim()) asked.tools = JSON.parse(parameters.tools);
  return asked;
}

/** Fill `message` with the answer as it comes, and call `changed` each time. What goes wrong is said
 * in the message. */
export async function stream(asked, message, signal, changed) {
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
    const answer = await ask("POST", "/v1/chat/completions", { body: asked, signal });
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

/** Add a chunk to a message; return whether it has something that was generated. */
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

// --- text ------------------------------------------------------------------------------------------

/** Return the elements of a text, which may be cut anywhere. */
export function prose(text) {
  const found = [];
  const rows = text.split("\n");
  for (let at = 0; at < rows.length; ) {
    const fence = FENCE.exec(rows[at]);
    if (fence) {
      const code = [];
      for (at += 1; at < rows.length && !rows[at].trimStart().startsWith(fence[1]); at += 1) code.push(rows[at]);
      at += 1;
      found.push(h("pre", { tabindex: "0" }, h("code", { "data-language": fence[2] || null }, code.join("\n"))));
    } else if (!rows[at].trim()) at += 1;
    else if (ITEM.test(rows[at])) {
      const isNumbered = /^\s*\d/.test(rows[at]);
      const items = [];
      for (; at < rows.length && (ITEM.test(rows[at]) || (rows[at].startsWith("  ") && rows[at].trim())); at += 1)
        if (ITEM.test(rows[at])) items.push(rows[at].replace(ITEM, ""));
        else items[items.length - 1] += ` ${rows[at].trim()}`;
      found.push(h(isNumbered ? "ol" : "ul", {}, items.map((item) => h("li", {}, inline(item)))));
    } else if (/^#{1,6} /.test(rows[at])) {
      found.push(h("p", { class: "heading" }, inline(rows[at].replace(/^#+ /, ""))));
      at += 1;
    } else {
      const lines = [];
      for (; at < rows.length && rows[at].trim() && !FENCE.test(rows[at]) && !ITEM.test(rows[at]); at += 1)
        lines.push(rows[at]);
      found.push(h("p", {}, lines.flatMap((line, index) => (index ? [h("br"), ...inline(line)] : inline(line)))));
    }
  }
  return found;
}

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}
