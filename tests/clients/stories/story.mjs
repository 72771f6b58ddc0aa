// What all stories share: a story is a list of calls of one client, told one JSON line per call.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const url = process.env.STORY_URL;
export const model = process.env.STORY_MODEL;
export const MISSING = "no-such-model";
export const COUNT = "List the integers from 1 to 30";
export const PARIS = "What is the weather in Paris?";
export const SUNNY = "17 degrees and sunny";
export const PERSON = "Describe a person as JSON";

/** Run the calls of one client in their order, each to its end, and tell how each went. */
export async function tell(client, pack, calls) {
  const file = new URL(`./node_modules/${pack}/package.json`, import.meta.url);
  const { version } = JSON.parse(readFileSync(file, "utf8"));
  for (const [call, run] of Object.entries(calls)) {
    const begun = performance.now();
    const why = await failure(run);
    const seconds = Math.round(performance.now() - begun) / 1000;
    console.log(JSON.stringify({ client, version, call, ok: why === "", why, seconds }));
  }
}

async function failure(run) {
  try {
    await run();
    return "";
  } catch (error) {
    return `${error?.stack ?? error}`.slice(0, 1500) || "an empty error";
  }
}

/** Check that a text counts up, as it was asked to. */
export function counts(text) {
  assert.match(text, /1, 2, 3, 4, 5/);
}

/** Check that a promise fails, and return with what. */
export async function thrown(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("no error came");
}

/** Begin streams that are cut until one is cut before it ends by itself; on a busy machine a client
 * may come too late. `cut` makes one, and fails where it was too late. */
export async function inTime(cut) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await cut();
    } catch (late) {
      if (tries === 5) throw late;
    }
  }
}

/** Check that a value is what the schema of a person asks for. */
export function isPerson(value) {
  assert.deepEqual(Object.keys(value).sort(), ["age", "name"]);
  assert.equal(typeof value.name, "string");
  assert.ok(Number.isInteger(value.age));
}

/** Return how many requests the node computes now, by its own count. */
async function running() {
  const text = await (await fetch(`${url}/metrics`)).text();
  const lines = text.split("\n").filter((line) => /^shoal_num_requests_running[{ ]/.test(line));
  assert.ok(lines.length > 0, "the node counts its requests");
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

async function until(holds, problem) {
  for (const end = Date.now() + 8000; !holds(await running()); ) {
    assert.ok(Date.now() < end, problem);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Wait until the node counts a request. */
export const busy = () => until((count) => count > 0, "the node counts no request");

/** Wait until the node computes nothing any more: what was given up is not computed on. */
export const idle = () => until((count) => count === 0, "what was given up is computed on");
