// The HTTP API that everybody has: requests with the key that this tab holds, and their streams.

const KEPT = "shoal.key";
let key = sessionStorage.getItem(KEPT);

export const hasKey = () => key !== null;

/** Hold a key for this tab; null forgets it. */
export function setKey(text) {
  key = text;
  if (text === null) sessionStorage.removeItem(KEPT);
  else sessionStorage.setItem(KEPT, text);
}

/** What the API refused, in its own words; status 0: it was not reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Return an answer whose status is good. Throws ApiError; what was aborted stays an AbortError. */
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

/** Return the words of an `error` as any of the API's forms has it. */
export const messageOf = (error) => (error && typeof error === "object" ? error.message : error);

/** Return the JSON of an answer. Throws ApiError. */
export async function json(method, path, body) {
  return (await ask(method, path, { body })).json();
}

/** Yield the lines of a body as they come. */
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

/** Yield the events of a body as they come: `{name, id, data}`, and `{comment}` between them. */
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
