// The cluster: a graph of nodes, links and ranks, a card for each node, the traffic of links, and the
// recent activity of runners.

import { ApiError, json } from "./api.js";
import { bytes, clock, h, number, percent, s, shortened, show, span, table, words } from "./dom.js";
import { isSilent, linksOf, live, nameOf } from "./live.js";
import { T } from "./texts.js";

const C = T.cluster;
const MOST_WIDTH = 860;
const BOX = { width: 156, height: 60 };
const LABEL = { width: 80, height: 46 };
const NARROW = 500;
const MOST_LABELS = 10;
const HEAVY = ["hidden", "sums"];
const R = T.runners;
const D = T.watch.doing;
const RUNNERS_MS = 5000;
const ENTRIES = 16;
const APART = new Set(["at_s", "error_s", "phase", "memory", "node", "name", "process", "pid", "instance", "generation", "rank"]);
const USUAL_S = 60;

let root = null;
let asking = null;
let timer = null;
let did = null;
let didProblem = null;

export const cluster = {
  open(main) {
    root = main;
    draw();
    readRunners((asking = {}));
  },
  update() {
    draw();
  },
  close() {
    clearTimeout(timer);
    root = asking = did = didProblem = null;
  },
};

function draw() {
  if (root === null) return;
  const { snapshot } = live;
  if (!snapshot) {
    show(root, h("header", { class: "head" }, h("h1", {}, C.title)), h("div", { class: "body" }, h("p", { class: "dim" }, T.loading)));
    return;
  }
  const total = snapshot.nodes.reduce((sum, node) => sum + (node.memory_total_bytes ?? 0), 0);
  const promised = snapshot.nodes.reduce((sum, node) => sum + node.promised_bytes, 0);
  const links = linksOf(snapshot);
  const term = snapshot.holder ? C.term(snapshot.term, nameOf(snapshot.holder)) : C.noHolder;
  show(
    root,
    h("header", { class: "head" }, h("h1", {}, C.title),
      h("p", { class: "dim" }, C.summary(T.status.nodes(snapshot.nodes.length), bytes(total), bytes(promised)), " · ", term)),
    h("div", { class: "body" },
      snapshot.bridge_loops.map((loop) => h("p", { class: "finding", role: "alert" }, words(C.loop(loop.map(nameOf).join(", "))))),
      h("section", {}, graph(snapshot, links)),
      h("section", { class: "cards" }, snapshot.nodes.map((node) => card(node, snapshot))),
      links.length > 0 && h("section", {}, h("h2", {}, C.links), linkTable(links)),
      h("section", { class: "runners" }, runnersPart())),
  );
}

// --- links ------------------------------------------------------------------------------------------

/** Return how often links are measured, and why less often than in a small cluster. */
function rhythm() {
  const readings = Object.values(live.state?.telemetry.links ?? {}).filter((reading) => reading.latency_every_s);
  if (!readings.length) return null;
  const most = (name) => Math.max(...readings.map((reading) => reading[name]));
  return C.rhythm(span(most("latency_every_s")), span(most("bandwidth_every_s")), most("bandwidth_every_s") > USUAL_S);
}

const speedOf = (link, atLeast = C.atLeast) => (link.at_least ? atLeast(`${bytes(link.bytes_per_s)}/s`) : `${bytes(link.bytes_per_s)}/s`);

const restOf = ({ rests }) => rests && C.rests[rests.why](rests.name);
const kindOf = ({ kind }) => C.kinds[kind] ?? kind ?? T.unknown;

/** Return texts for the traffic of a link, one for each model and kind. */
const crossings = (link) => link.crossing.map(({ model, what, ways }) => C.crosses(model, C.crossing[what], ways));

function linkTable(links) {
  const rows = links.map((link) =>
    h(
      "tr", { "data-key": `${link.a.node} ${link.b.node}` },
      h("td", {}, `${link.a.name} – ${link.b.name}`, h("small", {}, kindOf(link))),
      h("td", { class: "crossing" }, link.crossing.length ? crossings(link).map((text) => h("small", {}, text)) : h("small", {}, C.nothingCrosses)),
      h("td", { class: "n" }, link.best ? span(link.best.latency_s) : "–", link.best && h("small", {}, C.roundTrip(span(link.best.round_trip_s)))),
      h("td", { class: "n" }, link.best ? speedOf(link.best) : "–", link.best && h("small", {}, C.ago(span(link.best.age_s)))),
      h("td", {}, h("span", { class: `pill ${link.state === "linked" ? "good" : link.state === "silent" ? "bad" : ""}` }, C.states[link.state] ?? T.unknown),
        (link.rests || (!link.best && link.state === "linked")) && h("small", {}, restOf(link) ?? C.rests.new())),
    ),
  );
  const { link: words } = C;
  return [
    table([words.between, words.crosses, [words.latency, "n"], [words.speed, "n"], words.state], rows),
    h("p", { class: "dim" }, rhythm()),
  ];
}

// --- the graph --------------------------------------------------------------------------------------

function graph(snapshot, links) {
  const { nodes } = snapshot;
  const width = Math.max(300, Math.min(MOST_WIDTH, root.clientWidth - 80));
  const frame = { width, box: { ...BOX, width: width < NARROW ? 138 : BOX.width } };
  frame.height = heightOf(nodes.length, width);
  const spots = placesOf(nodes.length, frame);
  const places = new Map(nodes.map((node, at) => [node.node, spots[at]]));
  return h(
    "figure", { class: "graph" },
    s("svg", { viewBox: `0 0 ${width} ${frame.height}`, width, role: "img", "aria-label": C.graph },
      links.map((link) => edge(link, places, frame.box, nodes.length <= MOST_LABELS)),
      nodes.map((node) => box(node, places.get(node.node), frame.box, snapshot))),
    nodes.length === 1 && h("figcaption", { class: "dim" }, C.alone.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part))),
  );
}

function heightOf(count, width) {
  if (count === 1) return 80;
  if (width < NARROW) return 100 + 95 * Math.ceil((count - 1) / 2);
  return count === 2 ? 80 : count <= 4 ? 240 : 330;
}

/** Return the centres of the nodes' boxes: on an ellipse that fills the frame, or in two columns in a
 * narrow frame. */
function placesOf(count, { width, height, box }) {
  const inColumns = width < NARROW && count > 3;
  const places = Array.from({ length: count }, (_, at) => {
    if (inColumns) return { x: at % 2, y: at / 2 };
    const turn = (2 * Math.PI * at) / count + (count === 2 && width >= NARROW ? Math.PI : -Math.PI / 2);
    return { x: Math.cos(turn), y: Math.sin(turn) };
  });
  const fitted = (name, size, part) => {
    const all = places.map((place) => place[name]);
    const [least, most] = [Math.min(...all), Math.max(...all)];
    const room = size - part - 4;
    return (value) => (most - least < 0.01 ? size / 2 : part / 2 + 2 + (room * (value - least)) / (most - least));
  };
  const x = fitted("x", width, box.width);
  const y = fitted("y", height, box.height);
  return places.map((place) => ({ x: x(place.x), y: y(place.y) }));
}

function edge(link, places, size, mayLabel) {
  const from = places.get(link.a.node);
  const to = places.get(link.b.node);
  const isFar = Math.abs(from.x - to.x) > size.width + LABEL.width || Math.abs(from.y - to.y) > size.height + LABEL.height;
  const isLabelled = mayLabel && isFar;
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  const isHeavy = link.crossing.some(({ what }) => HEAVY.includes(what));
  const kind = ["edge", link.state ?? "unseen", isHeavy ? "crossed" : ""].join(" ");
  const figures = link.best ? [span(link.best.latency_s), speedOf(link.best, C.orMore)] : [C.unmeasured];
  const label = link.state === "linked" ? [kindOf(link), ...figures] : [C.states[link.state] ?? T.unknown];
  const facts = [
    `${link.a.name} – ${link.b.name}`,
    ...crossings(link),
    link.best && C.measured(span(link.best.latency_age_s), span(link.best.age_s)),
    restOf(link),
  ].filter(Boolean);
  return s(
    "g", { class: kind, "data-key": `${link.a.node} ${link.b.node}` },
    s("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y }),
    s("title", {}, facts.join("; ")),
    isLabelled && s("rect", { class: "behind", x: middle.x - LABEL.width / 2, y: middle.y - 7 * label.length - 2, width: LABEL.width, height: 14 * label.length + 4, rx: 4 }),
    isLabelled && label.map((text, row) => s("text", { x: middle.x, y: middle.y + 4 + (row - (label.length - 1) / 2) * 14 }, text)),
  );
}

function box(node, place, size, snapshot) {
  const silent = isSilent(node);
  const tone = silent ? "bad" : node.health.status === "ok" ? "good" : node.health.status === "error" ? "bad" : "warn";
  const left = place.x - size.width / 2;
  const top = place.y - size.height / 2;
  const ranks = ranksOn(node, snapshot);
  const line = ranks.length ? ranks.map(({ instance, rank }) => C.seat(instance.model, rank.rank, instance.ranks.length)).join(", ") : C.noRanks;
  const used = node.memory_total_bytes ? (node.memory_total_bytes - node.memory_available_bytes) / node.memory_total_bytes : 0;
  return s(
    "g", { class: `node ${tone}`, "data-key": node.node },
    s("rect", { class: "box", x: left, y: top, width: size.width, height: size.height, rx: 9 }),
    s("circle", { cx: left + 15, cy: top + 19, r: 4.5 }),
    s("text", { class: "name", x: left + 27, y: top + 23 }, shortened(node.name, Math.floor(size.width / 10.5))),
    node.node === snapshot.holder && s("path", { class: "crown", d: `M${left + size.width - 25} ${top + 24}v-9l4 4 3.500-6 3.500 6 4-4v9z` }, s("title", {}, C.holder)),
    s("text", { class: "line", x: left + 13, y: top + 41 }, shortened(silent ? silence(node) : line, Math.floor(size.width / 6.8))),
    s("rect", { class: "track", x: left + 13, y: top + 48, width: size.width - 26, height: 4, rx: 2 }),
    s("rect", { class: "fill", x: left + 13, y: top + 48, width: (size.width - 26) * used, height: 4, rx: 2 }),
  );
}

const ranksOn = (node, snapshot) =>
  snapshot.instances.flatMap((instance) => instance.ranks.filter((rank) => rank.node === node.node).map((rank) => ({ instance, rank })));

const silence = (node) => (node.silent_s === null ? C.unheard : C.silent(span(Math.round(node.silent_s))));

// --- a node -----------------------------------------------------------------------------------------

function card(node, snapshot) {
  const facts = live.state?.telemetry.cards.find((entry) => entry.node === node.node);
  const silent = isSilent(node);
  const tone = silent ? "bad" : { ok: "good", warn: "warn", error: "bad" }[node.health.status];
  const word = silent ? silence(node) : C.health[node.health.status];
  return h(
    "article", { class: `card node-card ${silent ? "silent" : ""}`, "data-key": node.node },
    h("header", {},
      h("h2", {}, node.name),
      node.node === snapshot.holder && h("span", { class: "pill quiet" }, C.holder),
      node.node === snapshot.node && h("span", { class: "pill quiet" }, C.own),
      node.draining && h("span", { class: "pill warn" }, C.draining),
      h("span", { class: `pill ${tone}` }, word)),
    node.health.message && h("p", { class: `finding ${tone}` }, node.health.message, node.health.remediation && h("span", {}, h("b", {}, `${C.remedy}: `), node.health.remediation)),
    memoryBar(node),
    h("dl", {},
      fact(C.cpu, processor(node)),
      fact(C.disk, node.disk_free_bytes === null ? T.unknown : bytes(node.disk_free_bytes)),
      fact(C.chip, facts ? `${facts.chip || facts.platform}, ${facts.cores} cores` : T.unknown),
      fact(C.system, facts?.os_version || facts?.platform || T.unknown),
      accelerators(node.hardware)),
    node.hardware?.untold.length > 0 && h("details", { class: "untold dim" }, h("summary", {}, C.untold), h("ul", {}, node.hardware.untold.map((entry) => h("li", {}, words(entry.why))))),
    h("ul", { class: "ranks", "aria-label": C.ranks }, rankLines(node, snapshot)),
  );
}

const fact = (title, value) => h("div", {}, h("dt", {}, title), h("dd", {}, value));

function processor({ cpu_ratio: ratio, hardware }) {
  const readings = [power(hardware?.cpu_power_w), temperature(hardware?.cpu_temperature_c)].filter(Boolean);
  return ratio === null ? T.unknown : [percent(ratio), ...readings].join(" · ");
}

/** Return a fact for each accelerator: load, memory, power and temperature. Missing figures are listed as unknown. */
function accelerators(hardware) {
  const gpus = hardware?.accelerators ?? [];
  if (!gpus.length) return fact(C.gpu, T.unknown);
  return gpus.map((gpu) => h("div", { class: "wide", "data-key": gpu.device }, h("dt", {}, C.accelerator(gpu.name ?? C.vendors[gpu.vendor])), h("dd", {}, figures(gpu))));
}

function figures(gpu) {
  const values = {
    load: gpu.utilisation_ratio === null ? null : C.busy(percent(gpu.utilisation_ratio)),
    memory: memoryOf(gpu),
    power: power(gpu.power_w),
    temperature: temperature(gpu.temperature_c),
  };
  const untold = Object.keys(values).filter((name) => values[name] === null).map((name) => C.figures[name]);
  const clock = gpu.clock_mhz === null ? null : C.clock(number(gpu.clock_mhz));
  return [...Object.values(values), clock, untold.length > 0 && C.unknownFigures(untold)].filter(Boolean).join(" · ");
}

/** Return an accelerator's used and total memory: VRAM or GTT, whichever has more in use. */
function memoryOf(gpu) {
  const own = [gpu.vram_used_bytes, gpu.vram_total_bytes];
  const mapped = [gpu.gtt_used_bytes, gpu.gtt_total_bytes];
  const [used, total] = (mapped[0] ?? -1) > (own[0] ?? -1) ? mapped : own;
  if (used === null) return null;
  return total === null ? bytes(used) : C.part(bytes(used), bytes(total));
}

const power = (watts) => ((watts ?? null) === null ? null : `${watts.toFixed(0)} W`);
const temperature = (celsius) => ((celsius ?? null) === null ? null : `${celsius.toFixed(0)} °C`);

function rankLines(node, snapshot) {
  const placed = ranksOn(node, snapshot);
  if (!placed.length) return h("li", { class: "dim" }, C.noRanks);
  return placed.map(({ instance, rank }) =>
    h("li", { "data-key": `${instance.instance} ${rank.rank}` },
      h("strong", {}, instance.model), " ",
      h("span", { class: "dim" }, C.rank(rank.rank, instance.ranks.length, rank.first_layer + 1, rank.last_layer)),
      h("span", { class: "n" }, bytes(rank.used_bytes ?? rank.promised_bytes))));
}

/** Return a bar of a node's memory: used by models, other use, further reserved, free. */
function memoryBar(node) {
  const total = node.memory_total_bytes;
  if (!total) return h("p", { class: "dim" }, `${C.memory}: ${T.unknown}`);
  const inUse = total - node.memory_available_bytes;
  const used = Math.min(node.used_bytes, inUse);
  const parts = { used, other: inUse - used, promised: Math.max(0, Math.min(node.promised_bytes - used, total - inUse)) };
  const sizes = { used: node.used_bytes, other: parts.other, promised: node.promised_bytes, leased: node.leased_bytes };
  if (!sizes.leased) delete sizes.leased;
  const label = Object.entries(sizes).map(([name, size]) => `${C.memoryLegend[name]} ${bytes(size)}`);
  return h(
    "div", { class: "memory" },
    h("div", { class: "line" }, h("span", {}, C.memory), h("span", { class: "n" }, bytes(total))),
    h("div", { class: "segments", role: "img", "aria-label": `${C.memory} ${bytes(total)}: ${label.join(", ")}` },
      Object.entries(parts).map(([name, size]) => h("i", { class: name, style: { width: `${(size / total) * 100}%` } }))),
    h("p", { class: "legend" }, Object.keys(sizes).map((name, at) => h("span", {}, name in parts && h("i", { class: name }), label[at]))),
  );
}

// --- recent activity of runners ---------------------------------------------------------------------

/** Poll the timeline of runners while this view is open. */
async function readRunners(mine) {
  try {
    const answer = await json("GET", `/v1/diagnostics/cluster/timeline?entries=${ENTRIES}`);
    if (asking === mine) [did, didProblem] = [answer, null];
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (asking === mine) didProblem = error.status === 0 ? null : error.message;
  }
  if (asking !== mine) return;
  draw();
  timer = setTimeout(readRunners, RUNNERS_MS, mine);
}

function runnersPart() {
  return [
    h("h2", {}, R.title), h("p", { class: "dim" }, R.note),
    didProblem && h("p", { class: "bad", role: "alert" }, didProblem),
    did?.behind.map((entry) => h("p", { class: "bad behind", "data-key": `${entry.node} ${entry.process} ${entry.pid}` },
      R.behind(entry.ended_at_s === null, entry.rank, entry.model ?? entry.instance, entry.name, entry.why))),
    did?.unreached.map((entry) => h("p", { class: "warn" }, R.unreached(entry.message))),
    did ? (did.runners.length ? did.runners.map(runner) : h("p", { class: "dim" }, R.none)) : h("p", { class: "dim" }, T.loading),
  ];
}

function runner(row) {
  const isOver = row.ended_at_s !== null;
  const tone = row.halted || isOver ? "bad" : row.phase === "ready" ? "good" : "warn";
  const mine = did.timeline.filter((entry) => entry.node === row.node && entry.process === row.process && entry.pid === row.pid);
  const notes = isOver ? [R.ended(clock(row.ended_at_s), row.exit_code), row.message] : [row.silent_s >= 2 && R.silent(span(row.silent_s))];
  return h(
    "details", { class: "stack runner", "data-key": `${row.node} ${row.process} ${row.pid}` },
    h("summary", {}, h("span", { class: `pill ${tone}` }, row.halted ? R.halted : (R.phases[row.phase] ?? row.phase)), " ",
      h("strong", {}, row.model ?? T.unknown), ` ${R.rank(row.rank)} `, h("span", { class: "chip" }, row.name), ` ${row.process} `,
      h("small", {}, notes.filter(Boolean).join(": "))),
    h("ol", {}, mine.map((entry) => h("li", {}, `${clock(entry.at_s)} `, h("code", {}, entry.phase), h("small", {}, ` ${factsOf(entry)}`)))),
    row.stacks && h("p", { class: "dim about" }, R.stacks(row.stacks.note)),
    row.stacks?.threads.map(stackOf),
  );
}

function factsOf(entry) {
  const facts = Object.entries(entry).filter(([name]) => !APART.has(name)).map(([name, value]) => `${name.replace(/_s$/, "")} ${name.endsWith("_s") ? clock(value) : value}`);
  return [...facts, entry.memory && R.memory(bytes(entry.memory.active_bytes), bytes(entry.memory.limit_bytes))].filter(Boolean).join(" · ");
}

/** Return the last two parts of a file's path. */
export const shortFile = (file) => file.split("/").slice(-2).join("/");

/** Return a thread's calls as an element that opens. */
export function stackOf(thread) {
  const marks = [thread.active && D.active, thread.owns_gil && D.gil].filter(Boolean);
  return h(
    "details", { class: "stack", open: thread.active, "data-key": String(thread.thread_id) },
    h("summary", {}, h("strong", {}, thread.name || D.unnamed), marks.map((mark) => h("span", { class: "pill good" }, mark)), ` ${D.frames(thread.frames.length)}`),
    h("ol", {}, thread.frames.map((frame) => h("li", {}, h("code", {}, frame.name), h("small", {}, ` ${shortFile(frame.filename)}:${frame.line}`)))),
  );
}
