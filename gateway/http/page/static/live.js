// The live state of the cluster for all views: a snapshot each second, the whole state after a change,
// the figures of the last five minutes (older ones from the node's history), and the links. It
// reconnects by itself and reports for how long it was disconnected.

import { ApiError, ask, events, hasKey, json, setKey } from "./api.js";

export const SPAN_S = 300;
export const HOUR_S = 3600;
const HOUR_MS = 10_000;
const GAP_POINTS = 2.5;
const MEAN_S = 5;
const SILENT_S = 6;
export const PAUSES_S = [0.3, 0.7, 1, 2];
const STATE_S = 15;
const LIMITED_S = 20;
const NOTHING = { generated: null, prompts: null, ttft: null, itl: null, running: null, waiting: null, kv: null, errors: null, nodes: {} };
const MODELS_TRIES = 10;

export const live = {
  status: "connecting",
  snapshot: null,
  state: null,
  models: null,
  past: [],
  hour: [],
  lostAt: null,
  keyRefused: false,
};

const listeners = new Set();
let stopped = null;
let hourTimer = null;
let isRecalled = false;
let askedIndex = null;
let askedAt = -Infinity;
let asksForKey = false;
let wake = () => {};

const nowS = () => performance.now() / 1000;

/** Call `listener` after each change, with its kind: snapshot, hour, state, status or back. */
export const listen = (listener) => listeners.add(listener);

const tell = (what, value) => listeners.forEach((listener) => listener(what, value));

function become(status) {
  if (live.status === status) return;
  if (status === "lost") live.lostAt ??= nowS();
  if (status === "live" && live.lostAt !== null) {
    tell("back", nowS() - live.lostAt);
    live.lostAt = null;
  }
  live.status = status;
  tell("status");
}

/** Follow the cluster while the page is open. */
export async function follow() {
  for (let tries = 0; ; tries += 1) {
    stopped = new AbortController();
    const watchdog = new Watchdog(stopped);
    let pauseS = PAUSES_S[Math.min(tries, PAUSES_S.length - 1)];
    try {
      const answer = await ask("GET", "/metrics/stream", { signal: stopped.signal, accept: "text/event-stream" });
      for await (const event of events(answer)) {
        watchdog.heard();
        if (event.name !== "snapshot") continue;
        tries = 0;
        take(JSON.parse(event.data));
      }
      become("lost");
    } catch (error) {
      pauseS = refused(error) ?? pauseS;
    } finally {
      watchdog.end();
    }
    await pause(pauseS);
  }
}

/** Set the status after a failure; return the seconds until the next try, undefined for the default. */
function refused(error) {
  if (!(error instanceof ApiError)) {
    become("lost");
  } else if (error.status === 401) {
    live.keyRefused = hasKey();
    setKey(null);
    become("login");
    return Infinity;
  } else if (error.status === 403 && asksForKey && !hasKey()) {
    become("login");
    return Infinity;
  } else if (error.status === 403) {
    become("limited");
    askModels();
    return LIMITED_S;
  } else become("lost");
  return undefined;
}

function pause(seconds) {
  return new Promise((resolve) => {
    wake = resolve;
    if (Number.isFinite(seconds)) setTimeout(resolve, seconds * 1000);
  });
}

/** Ask the user for a key, even if the chat works without one. */
export function askForKey() {
  asksForKey = true;
  wake();
}

/** Try a key. */
export function enter(text) {
  asksForKey = false;
  setKey(text);
  become("connecting");
  wake();
}

/** Delete the key and all data that it gave access to. */
export function leave() {
  setKey(null);
  become("connecting");
  Object.assign(live, { snapshot: null, state: null, models: null, past: [], hour: [], keyRefused: false, lostAt: null });
  askedIndex = null;
  isRecalled = false;
  stopped?.abort();
  wake();
}

/** Aborts a silent stream, because a machine that is down does not close its connections. */
export class Watchdog {
  constructor(controller, silentS = SILENT_S) {
    this.controller = controller;
    this.silentS = silentS;
    this.heard();
  }

  heard() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.controller.abort(), this.silentS * 1000);
  }

  end() {
    clearTimeout(this.timer);
    this.controller.abort();
  }
}

function take(snapshot) {
  const before = live.snapshot;
  live.snapshot = snapshot;
  live.past.push(pointOf(snapshot, before));
  while (live.past.length && live.past[0].at_s < snapshot.at_s - SPAN_S) live.past.shift();
  become("live");
  if (snapshot.index !== askedIndex || nowS() - askedAt > STATE_S) askState(snapshot.index);
  tell("snapshot");
}

/** Load the whole state and the models again. */
export async function askState(index = askedIndex) {
  askedIndex = index;
  askedAt = nowS();
  try {
    live.state = await json("GET", "/state");
    tell("state");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    askedIndex = null;
  }
  await askModels();
}

async function askModels() {
  try {
    live.models = (await json("GET", "/v1/models")).data;
    tell("state");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

/** Poll the figures of the last hour while `isWanted()`. Curves have gaps where the node has no
 * figures. */
export async function askHour(isWanted) {
  clearTimeout(hourTimer);
  if (!isWanted()) return;
  try {
    const { points, every_s: everyS } = await json("GET", "/metrics/history");
    live.hour = broken(points, everyS);
    tell("hour");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
  clearTimeout(hourTimer);
  hourTimer = setTimeout(askHour, HOUR_MS, isWanted);
}

/** Return points, with a point of unknown values in each gap. */
const broken = (points, everyS) =>
  points.flatMap((point, at) => {
    const isGap = at > 0 && point.at_s - points[at - 1].at_s > GAP_POINTS * everyS;
    return isGap ? [{ ...NOTHING, at_s: points[at - 1].at_s + everyS }, point] : [point];
  });

/** Fill the start of the last five minutes from the node's history, once. */
export async function recallPast() {
  if (isRecalled || !live.past.length) return;
  isRecalled = true;
  try {
    const { points, every_s: everyS } = await json("GET", "/metrics/history");
    if (!live.past.length) return;
    const [first] = live.past;
    const before = points.filter((point) => point.at_s >= first.at_s - SPAN_S && point.at_s < first.at_s);
    live.past.unshift(...broken([...before, first], everyS).slice(0, -1));
    tell("snapshot");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

/** Wait until the models are listed, for some seconds at most. The first HTTP process may not know a
 * new key yet. */
export async function modelsKnown(signal) {
  for (let tries = 0; live.models === null && tries < MODELS_TRIES && !signal.aborted; tries += 1) {
    if (tries) await new Promise((resolve) => setTimeout(resolve, 500));
    await askModels().catch(() => {});
  }
}

/** Return a snapshot's point in the plots. Counters that decreased have restarted. */
function pointOf(snapshot, before) {
  const { counters } = snapshot;
  const points = live.past.filter((point) => point.counters); // points of the node's history have no counters
  const then = (points.findLast((point) => point.at_s <= snapshot.at_s - MEAN_S + 0.5) ?? points[0])?.counters ?? counters;
  const mean = (name) => {
    const count = total(counters[name]) - total(then[name]);
    return count > 0 ? (counters[name].sum - then[name].sum) / count : null;
  };
  const errors = before ? Math.max(0, snapshot.counters.http_errors - before.counters.http_errors) : 0;
  return {
    at_s: snapshot.at_s,
    counters,
    generated: snapshot.generation_tokens_per_s,
    prompts: snapshot.prompt_tokens_per_s,
    ttft: mean("ttft_s"),
    itl: mean("itl_s"),
    running: snapshot.running,
    waiting: snapshot.waiting,
    kv: snapshot.kv_bytes,
    errors,
    nodes: Object.fromEntries(
      snapshot.nodes.map((node) => [
        node.node,
        isSilent(node)
          ? { cpu: null, memory: null }
          : { cpu: node.cpu_ratio, memory: node.memory_total_bytes - node.memory_available_bytes },
      ]),
    ),
  };
}

const total = (histogram) => histogram.counts.reduce((sum, count) => sum + count, 0);

export const QUIET_S = 2.4;

/** Return whether a node is silent for too long; it sends a reading each second. */
export const isSilent = (node) => node.silent_s === null || node.silent_s >= QUIET_S;

/** Return the name of a node by its id. */
export const nameOf = (id) => live.snapshot?.nodes.find((node) => node.node === id)?.name ?? id ?? "";

// --- links ----------------------------------------------------------------------------------------

/** Return an entry for each pair of nodes: state, the better measurement, the reason for none, and the
 * traffic between them. */
export function linksOf(snapshot) {
  const telemetry = live.state?.telemetry;
  const pairs = [];
  snapshot.nodes.forEach((a, at) => {
    for (const b of snapshot.nodes.slice(at + 1)) {
      const ways = [[a, b], [b, a]];
      const seen = ways.map(([from, to]) => telemetry?.peers[from.node]?.peers.find((peer) => peer.node === to.node));
      const measured = ways
        .flatMap(([from, to]) => (telemetry?.links[from.node]?.links ?? []).filter((link) => link.peer === to.node).map((link) => ({ ...link, to, ...agesOf(link, telemetry.links[from.node]) })))
        .sort((first, second) => second.bytes_per_s - first.bytes_per_s);
      const best = measured[0] ?? null;
      const quiet = isSilent(a) || isSilent(b);
      const states = seen.filter(Boolean).map((peer) => peer.status);
      const state = quiet ? "silent" : (states.find((status) => status !== "linked") ?? states[0] ?? null);
      const rests = state === "linked" ? restOf(ways) : null;
      const hosts = [best && [best.host, best.to], ...ways.map(([, to], way) => [seen[way]?.host, to])];
      pairs.push({ a, b, best, state, rests, kind: kindOf(hosts.find((host) => host?.[0])), crossing: crossingsOf(a, b, snapshot) });
    }
  });
  return pairs;
}

/** Return the age of a link's measurements now; the reading has their age at its own time. */
function agesOf(link, { measured_at_s: saidS }) {
  const sinceS = Math.max(0, live.snapshot.at_s - saidS);
  return { age_s: link.age_s + sinceS, latency_age_s: link.latency_age_s + sinceS };
}

/** Return why two linked nodes do not measure each other now: `{why, name}`, with the name of the node
 * that is the cause. Null: at least one of them measures. */
function restOf(ways) {
  const rests = ways.map(([from, to]) => {
    const reading = live.state?.telemetry.links[from.node];
    if (!reading) return { why: "new" };
    if (!reading.latency_every_s) return { why: "off", name: from.name };
    const why = reading.resting.find((entry) => entry.peer === to.node)?.why;
    return why ? { why, name: why === "busy_there" ? to.name : from.name } : null;
  });
  return rests.includes(null) ? null : rests[0];
}

/** Return the medium of a link, from the card of the node that has this host address; null: unknown. */
function kindOf([host, to] = []) {
  if (!host) return null;
  const card = live.state?.telemetry.cards.find((entry) => entry.node === to.node);
  return card?.ips.find((address) => address.ip === host)?.medium ?? (host.startsWith("127.") ? "loopback" : null);
}

/** Return the traffic between ranks on two nodes: `{model, what, ways}`, each way as
 * `[from, to]`. */
function crossingsOf(a, b, snapshot) {
  const pair = [a.node, b.node];
  const copies = snapshot.instances.filter(({ status }) => status !== "failed");
  return copies.flatMap(({ model, sharding, ranks }) => {
    const between = (ways) => ways.filter((way) => way[0].node !== way[1].node && way.every((rank) => pair.includes(rank.node))).map((way) => way.map(({ rank }) => rank));
    const stages = [...ranks].sort((first, second) => first.first_layer - second.first_layer);
    const followers = ranks.filter(({ rank }) => rank > 0);
    const sent = {
      hidden: sharding === "pipeline" ? stages.slice(1).map((stage, at) => [stages[at], stage]) : [],
      tokens: sharding === "pipeline" && stages.length > 1 ? [[stages.at(-1), stages[0]]] : [],
      sums: sharding === "tensor" ? ranks.flatMap((rank, at) => ranks.slice(at + 1).map((other) => [rank, other])) : [],
      plan: followers.map((follower) => [ranks.find(({ rank }) => rank === 0), follower]),
    };
    return Object.entries(sent).map(([what, ways]) => ({ model, what, ways: between(ways) })).filter(({ ways }) => ways.length);
  });
}
