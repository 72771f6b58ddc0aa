// Plots of the last five minutes or hour, from the stream's snapshots; events of the log as they happen;
// a process's log, its stacks and its profile.

import { ApiError, ask, events, json } from "./api.js";
import { areaOf, bytes, clock, dots, h, hottestOf, laidOut, lineOf, nearest, niceAbove, number, ownerOf, pathOf, percent, s, show, span, table, treeOf, words } from "./dom.js";
import { HOUR_S, PAUSES_S, SPAN_S, Watchdog, askHour, live, nameOf, recallPast } from "./live.js";
import { shortFile, stackOf } from "./cluster.js";
import { T } from "./texts.js";

const W = T.watch;
const VIEW = { width: 420, height: 120, top: 8, bottom: 18, right: 46 };

const E = W.events;
const L = W.log;
const D = W.doing;
const KEPT = 200;
const FEW = 12;
const QUIET_S = 15;
const LINES = 200;
const LOG_MS = 2000;
const DRAWN_MS = 50;
const FIRST = "gateway";
const TONES = {
  runner_ready: "good", runner_ended: "bad", load_refused: "bad", instance_failed: "bad",
  generation_opened: "warn", instance_draining: "warn", instance_yields: "warn", node_forgotten: "warn", gap: "warn",
};
const SAMPLED_S = [2, 10];
const FLAME = { width: 1100, row: 20, letter: 6.6 };
const LEAST_REACHED = 0.02;
const HOTTEST = 8;
const LATEST = 3;

let root = null;
let parts = null;
let pointed = null;
let isHour = false;
let happened = [];
let upTo = null;
let showsAll = false;
let eventProblem = null;
let stopped = null;
let drawTimer = null;
let isHeard = false;
let process = "";
let logged = null;
let logProblem = null;
let logTimer = null;
let subjects = null;
let subject = "";
let asking = null;
let seen = null;
let seenProblem = null;
let zoomed = null;

export const watch = {
  open(main) {
    root = main;
    parts = { head: h("header", { class: "head" }), plots: h("section", { class: "plots" }), events: h("section", {}), log: h("section", {}), doing: h("section", {}) };
    main.append(
      parts.head,
      h("div", { class: "body" }, parts.plots, parts.events, parts.log, parts.doing),
    );
    turnTo(isHour);
    recallPast();
    drawEvents();
    drawLog();
    drawDoing();
    followLog(parts);
    readLog();
    readSubjects();
  },
  update(what) {
    if (what === (isHour ? "hour" : "snapshot")) draw();
    recallPast();
    if (what === "state") drawEvents();
  },
  close() {
    stopped?.abort();
    clearTimeout(logTimer);
    root = parts = pointed = stopped = upTo = logged = eventProblem = logProblem = null;
    asking = seen = seenProblem = zoomed = null;
    happened = [];
    isHeard = false;
  },
};

/** Return the plots: name, format of values, and lines, each with a name and a function of a point. */
function plots() {
  const nodes = (live.snapshot?.nodes ?? []).map((node) => node.node);
  const byNode = (what) => nodes.map((node) => [nameOf(node), (point) => point.nodes[node]?.[what] ?? null]);
  return [
    ["generated", number, [["", (point) => point.generated]]],
    ["ttft", span, [["", (point) => point.ttft]]],
    ["itl", span, [["", (point) => point.itl]]],
    ["queue", number, [[W.running, (point) => point.running], [W.waiting, (point) => point.waiting]]],
    ["prompts", number, [["", (point) => point.prompts]]],
    ["kv", bytes, [["", (point) => point.kv]]],
    ["cpu", percent, byNode("cpu")],
    ["memory", bytes, byNode("memory")],
    ["errors", number, [["", (point) => point.errors]]],
  ];
}

function draw() {
  if (root === null) return;
  const choice = (hour) => h("button", { class: "plain", onclick: () => turnTo(hour), "aria-pressed": String(isHour === hour) }, W.spans[hour ? 1 : 0]);
  show(parts.head, h("h1", {}, W.title), h("p", { class: "dim" }, isHour ? W.hour : W.summary(span(SPAN_S))), h("div", { class: "row choices" }, choice(false), choice(true)));
  show(parts.plots, plots().map(([name, format, lines]) => plot(name, format, lines)));
}

/** Show the last five minutes or the last hour; the hour's figures are polled while it is shown. */
function turnTo(hour) {
  const mine = parts;
  isHour = hour;
  pointed = null;
  draw();
  askHour(() => isHour && parts === mine);
}

function plot(name, format, lines) {
  const [title, note] = W.plots[name];
  const past = isHour ? live.hour : live.past;
  const endS = past.at(-1)?.at_s ?? 0;
  const spanS = Math.min(isHour ? HOUR_S : SPAN_S, Math.max(60, Math.ceil((endS - (past[0]?.at_s ?? 0)) / 60) * 60));
  const values = lines.map(([, of]) => past.map(of));
  const numbers = values.flat().filter((value) => value !== null);
  const most = numbers.length ? Math.max(...numbers) : 0;
  const top = niceAbove(most, format === percent ? 1 : format === bytes ? 1e6 : format === span ? 0.001 : 1);
  const inner = { width: VIEW.width - VIEW.right, height: VIEW.height - VIEW.top - VIEW.bottom };
  const x = (atS) => inner.width * (1 - (endS - atS) / spanS);
  const y = (value) => VIEW.top + inner.height * (1 - value / top);
  const at = pointed === null ? past.length - 1 : nearest(past, endS - (1 - pointed) * spanS);
  const last = (row) => (pointed === null ? row.slice(isHour ? -LATEST : 0).findLast((value) => value !== null) : row[at]) ?? null;
  const move = (event) => {
    const frame = event.currentTarget.getBoundingClientRect();
    pointed = Math.min(1, Math.max(0, ((event.clientX - frame.left) / frame.width) * (VIEW.width / inner.width)));
    draw();
  };
  const left = () => {
    pointed = null;
    draw();
  };
  return h(
    "figure", { class: "plot", "data-key": name },
    h("figcaption", {},
      h("span", {}, h("b", {}, title), h("small", {}, note)),
      h("span", { class: "values" }, lines.map(([line], row) =>
        h("span", { class: `value line-${row % 6}` }, line && h("small", {}, line), h("b", {}, numbers.length ? format(last(values[row])) : W.nothing))))),
    s("svg", { viewBox: `0 0 ${VIEW.width} ${VIEW.height}`, role: "img", onpointermove: move, onpointerleave: left,
               "aria-label": W.described(title, lines.map((_, row) => format(last(values[row]))).join(", "), format(most)) },
      [0, 0.5, 1].map((part) => [
        s("line", { class: "grid", x1: 0, x2: inner.width, y1: y(top * part), y2: y(top * part) }),
        s("text", { class: "tick", x: inner.width + 6, y: y(top * part) + 3.5 }, format(top * part)),
      ]),
      [0, 0.5, 1].map((part) =>
        s("text", { class: `tick at-${part * 2}`, x: inner.width * part, y: VIEW.height - 4 }, part === 1 ? W.now : W.ago(span((1 - part) * spanS)))),
      values.map((row, number) => [
        lines.length === 1 && s("path", { class: `area line-${number % 6}`, d: areaOf(past, row, x, y, y(0)) }),
        s("path", { class: `curve line-${number % 6}`, d: pathOf(past, row, x, y) }),
        dots(past, row, x, y, number),
      ]),
      pointed !== null && past[at] && s("line", { class: "cross", x1: x(past[at].at_s), x2: x(past[at].at_s), y1: VIEW.top, y2: y(0) })),
  );
}

// --- the log's events -----------------------------------------------------------------------------

/** Follow the log's events while this view is open; continue after the last one when reconnected. */
async function followLog(mine) {
  for (let tries = 0; parts === mine; tries += 1) {
    stopped = new AbortController();
    const watchdog = new Watchdog(stopped, QUIET_S);
    try {
      const from = upTo === null ? `limit=${KEPT}` : `after=${upTo}`;
      const answer = await ask("GET", `/events?stream=true&${from}`, { signal: stopped.signal, accept: "text/event-stream" });
      for await (const event of events(answer)) {
        if (parts !== mine) return;
        watchdog.heard();
        tries = 0;
        if (!isHeard) drawTimer ??= setTimeout(drawEvents, DRAWN_MS);
        isHeard = true;
        if (event.data) take(JSON.parse(event.data), event.id);
      }
    } catch (error) {
      if (parts !== mine) return;
      eventProblem = error instanceof ApiError && error.status !== 0 ? error.message : null;
      drawEvents();
    } finally {
      watchdog.end();
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSES_S[Math.min(tries, PAUSES_S.length - 1)] * 1000));
  }
}

/** Add an event; events that arrive together are drawn once. */
function take(event, id) {
  drawTimer ??= setTimeout(drawEvents, DRAWN_MS);
  happened = [event, ...happened].slice(0, KEPT);
  upTo = id;
  eventProblem = null;
}

function drawEvents() {
  clearTimeout(drawTimer);
  drawTimer = null;
  if (root === null) return;
  const turn = () => {
    showsAll = !showsAll;
    drawEvents();
  };
  const rows = happened.slice(0, showsAll ? KEPT : FEW).map((event) =>
    h(
      "tr", { "data-key": `${event.term}:${event.index} ${event.kind}` },
      h("td", { class: "at" }, event.at_s === null ? "–" : clock(event.at_s)),
      h("td", {}, h("span", { class: `pill ${TONES[event.kind] ?? ""}` }, kindOf(event))),
      h("td", { class: "about" }, aboutOf(event), event.why && h("small", {}, words(event.why))),
    ),
  );
  show(
    parts.events,
    h("div", { class: "bar" }, h("h2", {}, E.title), h("p", { class: "dim" }, E.note)),
    eventProblem && h("p", { class: "bad", role: "alert" }, eventProblem),
    rows.length ? table([E.when, E.what, E.about], rows) : h("p", { class: "dim" }, isHeard ? E.none : T.loading),
    happened.length > FEW && h("button", { class: "plain", onclick: turn, "aria-expanded": String(showsAll) }, showsAll ? E.fewer : E.all(happened.length)),
  );
}

const kindOf = ({ kind, about }) => (kind === "node_drained" && !about.draining ? E.undrained : (E.kinds[kind] ?? kind));

/** Return the subject of an event as elements: names first, then details. */
function aboutOf({ about }) {
  const nodes = about.nodes ?? (about.node ? [about.node] : []);
  const isTold = (key) => ![undefined, null, ""].includes(about[key]) && !(key === "name" && about.name === nameOf(about.node));
  const details = Object.entries(E.told).filter(([key]) => isTold(key));
  return [
    (about.model ?? (about.instance && E.unknownModel)) && h("strong", {}, about.model ?? E.unknownModel),
    nodes.map((node) => h("span", { class: "chip" }, nameOf(node))),
    details.map(([key, say]) => h("span", { class: "dim" }, say(about[key], about))),
  ];
}

// --- a process's log ------------------------------------------------------------------------------

/** Load the end of the chosen log; without a choice, the names of all logs. */
async function readLog() {
  clearTimeout(logTimer);
  const mine = parts;
  const name = process;
  try {
    const path = `/v1/diagnostics/node/processes/${encodeURIComponent(name || FIRST)}/log`;
    const answer = await json("GET", `${path}?lines=${name ? LINES : 1}`);
    if (name !== process || parts !== mine) return;
    logged = answer;
    logProblem = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (name !== process || parts !== mine) return;
    logProblem = error.status === 0 ? null : error.message;
  }
  drawLog();
  if (process || logged === null) logTimer = setTimeout(readLog, LOG_MS);
}

function drawLog() {
  if (root === null) return;
  const chosen = (event) => {
    process = event.target.value;
    readLog();
  };
  const isShown = process && logged?.process === process;
  const old = parts.log.querySelector(".lines");
  const wasAtEnd = !old || old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
  show(
    parts.log,
    h("div", { class: "bar" }, h("h2", {}, L.title),
      h("select", { "aria-label": L.process, onchange: chosen },
        h("option", { value: "" }, L.choose),
        (logged?.processes ?? []).map((name) => h("option", { value: name, selected: name === process }, name)))),
    logProblem && h("p", { class: "bad", role: "alert" }, logProblem),
    isShown && (logged.lines.length
      ? h("div", { class: "lines", role: "group", tabindex: "0", "aria-label": L.of(process) }, logged.lines.map(lineOf))
      : h("p", { class: "dim" }, L.none)),
  );
  const lines = parts.log.querySelector(".lines");
  if (lines && wasAtEnd) lines.scrollTop = lines.scrollHeight;
}

// --- stacks and profiles --------------------------------------------------------------------------

/** Load the names of processes: of this node, then of all nodes, which may take longer. */
async function readSubjects() {
  const mine = parts;
  const groupOf = ({ node, processes }, prefix = "") => ({ node, options: processes.map(({ name }) => [`${prefix}${name}`, name]) });
  try {
    const here = groupOf(await json("GET", "/v1/diagnostics/node"));
    subjects = [here];
    if (parts !== mine) return;
    drawDoing();
    const { nodes } = await json("GET", "/v1/diagnostics/cluster");
    const others = nodes.filter((entry) => entry.reached && entry.node !== here.node);
    subjects = [here, ...others.map((entry) => groupOf(entry.diagnostics, `${entry.node} `))];
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    seenProblem = error.status === 0 ? null : error.message;
  }
  if (parts === mine) drawDoing();
}

/** Load the stacks of the chosen process, or a profile of some seconds. */
async function lookInto(seconds) {
  const mine = parts;
  const [there, node] = subject.split(" ").reverse();
  const name = node ? D.there(there, nameOf(node)) : there;
  const path = `/v1/diagnostics/${node ? `cluster/${node}` : "node"}/processes/${there}`;
  asking = seconds ? D.sampling(seconds) : D.looking;
  seen = seenProblem = zoomed = null;
  drawDoing();
  try {
    const answer = seconds ? await json("POST", `${path}/profile`, { seconds }) : await json("GET", `${path}/stacks`);
    if (parts !== mine) return;
    seen = seconds ? { name, flame: treeOf(answer, D.all) } : { name, threads: answer.threads };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (parts !== mine) return;
    seenProblem = error.message || D.unreached;
  }
  asking = null;
  drawDoing();
}

function drawDoing() {
  if (root === null) return;
  const chosen = (event) => {
    subject = event.target.value;
    drawDoing();
  };
  const isIdle = asking === null && subject !== "";
  show(
    parts.doing,
    h("div", { class: "bar" }, h("h2", {}, D.title),
      h("div", { class: "row tools" },
        h("select", { "aria-label": D.process, onchange: chosen },
          h("option", { value: "" }, L.choose),
          (subjects ?? []).map((group) => h("optgroup", { label: nameOf(group.node) }, group.options.map(([value, name]) => h("option", { value, selected: value === subject }, name))))),
        h("button", { onclick: () => lookInto(0), disabled: !isIdle }, D.stacks),
        SAMPLED_S.map((seconds) => h("button", { onclick: () => lookInto(seconds), disabled: !isIdle }, D.sample(seconds))))),
    h("p", { class: "dim", role: "status" }, asking ?? (seen ? D.of(seen.name) : D.note)),
    seenProblem && h("p", { class: "bad", role: "alert" }, seenProblem),
    seen?.threads && seen.threads.map(stackOf),
    seen?.flame && flame(seen.flame),
  );
}

function flame(whole) {
  if (!whole.seconds) return h("p", { class: "dim" }, D.idle);
  const top = zoomed ?? whole;
  const rows = laidOut(top);
  const height = (Math.max(...rows.map((row) => row.depth)) + 1) * FLAME.row;
  return h(
    "figure", { class: "flame" },
    h("div", { class: "bar" },
      h("p", { class: "legend" }, ["shoal", "library", "python", "thread"].map((kind) => h("span", {}, h("i", { class: `frame ${kind}` }), D.owners[kind]))),
      zoomed && h("button", { class: "plain", onclick: () => zoom(null) }, D.whole)),
    h("div", { class: "scroll" },
      s("svg", { viewBox: `0 0 ${FLAME.width} ${height}`, role: "group", "aria-label": D.described(whole.seconds.toFixed(2)) }, rows.map((row) => box(row, whole)))),
    hottest(whole),
  );
}

function box({ node, share, from, depth }, whole) {
  const x = from * FLAME.width;
  const width = share * FLAME.width;
  const letters = Math.floor((width - 6) / FLAME.letter);
  const title = D.frame(node.name, shortFile(node.file), percent(node.seconds / whole.seconds), percent(node.own / whole.seconds));
  const press = () => zoom(node === whole ? null : node);
  const key = (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), press());
  const reached = share >= LEAST_REACHED ? { tabindex: "0", role: "button", onkeydown: key } : {};
  return s(
    "g", { class: `frame ${ownerOf(node.file)}`, onclick: press, ...reached },
    s("title", {}, title),
    s("rect", { x, y: depth * FLAME.row, width: Math.max(0.5, width - 1), height: FLAME.row - 1, rx: Math.min(3, width / 2) }),
    letters > 2 && s("text", { x: x + 4, y: depth * FLAME.row + 14 }, node.name.length > letters ? `${node.name.slice(0, letters - 1)}…` : node.name),
  );
}

function zoom(node) {
  zoomed = node;
  drawDoing();
}

/** Return a table of the functions with the most time of their own, without callees. */
function hottest(whole) {
  const rows = hottestOf(whole).slice(0, HOTTEST).map(({ node, seconds }) =>
    h("tr", { "data-key": `${node.name} ${node.file}` },
      h("td", {}, h("code", {}, node.name)), h("td", { class: "wide-only" }, h("small", {}, shortFile(node.file))), h("td", { class: "n" }, percent(seconds / whole.seconds))));
  return table([D.function, [D.file, "wide-only"], [D.own, "n"]], rows);
}
