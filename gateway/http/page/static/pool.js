// The pool: waiting requests and models with reasons, plans, instances in memory, pins, leases of other
// programs, clients, and the loads and unloads of the last hour.

import { ApiError, json } from "./api.js";
import { bytes, clock, h, number, s, show, span, table, words } from "./dom.js";
import { live, nameOf } from "./live.js";
import { T } from "./texts.js";

const P = T.pool;
const LOOK_MS = 1000;
const HOUR_S = 3600;
const DRAWN_S = [240, 480, 1200, 2400, HOUR_S];
const QUARTERS = [1, 0.75, 0.5, 0.25, 0];
const NARROW = 500;
const LANE = { label: 19, bar: 12, gap: 3, space: 11 };
const MOST_WIDTH = 1150;
const FEW = 8;
const CLIENTS_MS = 5000;
const MOST_CLIENTS = 20;
const BEFORE = { ready: "loading", lost: "ready", unloading: "ready", unloaded: "unloading", failed: "loading" };
const OPENS = { loading: "loading", ready: "ready", lost: "lost", unloading: "unloading" };
const OF_STATUS = { placed: "loading", ready: "ready", draining: "unloading" };
const TONES = { ready: "good", failed: "bad", lost: "bad", loading: "warn", unloading: "warn" };

let root = null;
let timer = null;
let answer = null;
let asking = null; // the answer of /clients, with the time of the request
let problem = null;
let notice = null;
let showsAll = false;

export const pool = {
  open(main) {
    root = main;
    draw();
    look();
  },
  update() {
    draw();
  },
  close() {
    clearTimeout(timer);
    root = null;
    notice = problem = null;
    showsAll = false;
  },
};

async function look() {
  clearTimeout(timer);
  const mine = root;
  try {
    answer = await json("GET", "/pool");
    if (asking === null || Date.now() - asking.atMs >= CLIENTS_MS) asking = { ...(await json("GET", "/clients")), atMs: Date.now() };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status !== 0) problem = error.message;
  }
  if (root === null || root !== mine) return;
  draw();
  timer = setTimeout(look, LOOK_MS);
}

function draw() {
  if (root === null) return;
  const { snapshot } = live;
  const isKnown = answer !== null && snapshot !== null;
  show(
    root,
    h("header", { class: "head" }, h("h1", {}, P.title), isKnown && h("p", { class: "dim" }, summary(snapshot))),
    h("div", { class: "body" },
      problem && h("p", { class: "bad", role: "alert" }, problem),
      notice && h("p", { class: "good", role: "status" }, notice),
      isKnown ? sections(snapshot) : h("p", { class: "dim" }, T.loading)),
  );
}

function summary(snapshot) {
  const requests = answer.queue.reduce((sum, row) => sum + row.waiting, 0);
  return P.summary(requests, answer.waits.length, snapshot.instances.length, answer.pins.length);
}

const sections = (snapshot) => [
  answer.holder === null && h("p", { class: "bad", role: "alert" }, P.noHolder),
  h("section", {}, h("h2", {}, P.queue), queueTable()),
  answer.waits.length > 0 && h("section", {}, h("h2", {}, P.plans), h("div", { class: "cards" }, answer.waits.map((wait) => plan(wait, snapshot)))),
  h("section", {}, h("h2", {}, P.memory), copyTable(snapshot)),
  answer.leases.length > 0 && h("section", {}, h("h2", {}, P.leases), leaseTable()),
  asking !== null && h("section", {}, h("h2", {}, P.clients), clientTable()),
  h("section", {}, h("div", { class: "bar" }, h("h2", {}, P.hour), legend()), timeline(snapshot), changeTable()),
];

// --- the queue --------------------------------------------------------------------------------------

function queueTable() {
  if (!answer.queue.length) return h("p", { class: "dim" }, P.noQueue);
  const rows = answer.queue.map((row) =>
    h(
      "tr", { "data-key": `${row.priority} ${row.model} ${row.at}` },
      h("td", {}, h("span", { class: "priority" }, number(row.priority)), P.priorities[row.priority] && h("small", {}, P.priorities[row.priority])),
      h("td", { class: "name" }, h("strong", {}, row.model)),
      h("td", { class: "n" }, number(row.waiting)),
      h("td", { class: "n" }, row.oldest_s === null ? T.unknown : span(Math.round(row.oldest_s))),
      h("td", { class: "wide-only" }, P.at[row.at]),
    ),
  );
  return table([P.priority, P.model, [P.requests, "n"], [P.oldest, "n"], [P.where, "wide-only"]], rows);
}

/** Return the plan of a waiting model: the reason, the models to evict, the expected time. */
function plan(wait, snapshot) {
  const tone = wait.phase === "hopeless" ? "bad" : "warn";
  const entries = [...snapshot.instances, ...answer.loads.changes]; // evicted instances are only in the changes
  const victims = wait.victims.map((name) => entries.find((entry) => entry.instance === name)?.model ?? name);
  const chips = (names) => names.map((name) => h("span", { class: "chip" }, name));
  return h(
    "article", { class: "card plan-card", "data-key": wait.model },
    h("header", {}, h("h3", {}, wait.model), h("span", { class: `pill ${tone}` }, P.phases[wait.phase] ?? wait.phase)),
    h("p", {}, wait.why),
    h("dl", {},
      fact(P.wantedBy, P.kinds[wait.kind] ?? wait.kind),
      fact(P.priority, P.aged(number(wait.priority), number(wait.standing))),
      fact(P.since, span(Math.round(wait.waited_s))),
      fact(P.readyIn, wait.ready_in_s === null ? T.unknown : P.about(span(Math.round(wait.ready_in_s)))),
      fact(P.within, wait.within_s === null ? P.unbounded : P.bounded(span(Math.round(wait.within_s)))),
      wait.ahead > 0 && fact(P.ahead, number(wait.ahead)),
      victims.length > 0 && fact(P.victims, chips(victims)),
      wait.nodes.length > 0 && fact(P.onNodes, chips(wait.nodes.map(nameOf)))),
  );
}

const fact = (title, value) => h("div", {}, h("dt", {}, title), h("dd", {}, value));

// --- instances --------------------------------------------------------------------------------------

function copyTable(snapshot) {
  const copies = snapshot.instances;
  const stands = new Map(answer.copies.map((copy) => [copy.instance, copy]));
  const pins = new Map(answer.pins.map((pin) => [pin.model, pin]));
  const there = new Set(copies.map((copy) => copy.model));
  const away = answer.pins.filter((pin) => !there.has(pin.model));
  if (!copies.length && !away.length) return h("p", { class: "dim" }, P.noMemory);
  const rows = [
    ...copies.map((copy) => copyRow(copy, stands.get(copy.instance), pins.get(copy.model))),
    ...away.map((pin) =>
      h("tr", { "data-key": `pin ${pin.model}` },
        h("td", {}, h("strong", {}, pin.model), h("span", { class: "pill warn" }, P.away)),
        h("td", { class: "wide-only" }), h("td", { class: "n wide-only" }), h("td", {}), h("td", { class: "n" }), h("td", { class: "wide-only" }),
        h("td", {}, pinned(pin)), h("td", { class: "n" }, pinButton(pin.model, true)))),
  ];
  const heads = [P.model, [P.onNodes, "wide-only"], [P.promised, "n wide-only"], P.use, [P.turn, "n"], [P.loadTook, "n wide-only"], P.pin, [P.pin, "n hush"]];
  return table(heads, rows);
}

function copyRow(copy, stand, pin) {
  const state = OF_STATUS[copy.status];
  const isOther = state !== "ready";
  return h(
    "tr", { "data-key": copy.instance },
    h("td", {}, h("strong", {}, copy.model), stand?.replica && h("span", { class: "pill quiet" }, P.replica),
      isOther && h("span", { class: `pill ${TONES[state] ?? "bad"}` }, P.whats[state ?? copy.status] ?? copy.status),
      stand?.replica && h("div", { class: "dim" }, P.replicaCame(stand.replica)),
      stand?.leaves && h("div", { class: "dim" }, P.leaves(stand.leaves))),
    h("td", { class: "wide-only" }, [...new Set(copy.ranks.map((rank) => rank.node))].map((node) => h("span", { class: "chip" }, nameOf(node)))),
    h("td", { class: "n wide-only" }, bytes(copy.ranks.reduce((sum, rank) => sum + rank.promised_bytes, 0))),
    h("td", {}, stand ? use(stand) : T.unknown),
    h("td", { class: "n" }, stand?.turn_left_s ? span(Math.ceil(stand.turn_left_s)) : "–"),
    h("td", { class: "n wide-only" }, stand ? span(stand.load_s) : "–"),
    h("td", {}, pin && !stand?.replica ? pinned(pin) : "–"),
    h("td", { class: "n" }, pinButton(copy.model, Boolean(pin))),
  );
}

const use = (stand) =>
  stand.yields_to
    ? h("span", { class: "pill warn" }, P.yields(stand.yields_to))
    : h("span", { class: stand.in_use ? "pill good" : "pill" }, stand.in_use ? P.inUse : P.idle);

const pinned = (pin) => h("span", { class: "pill quiet" }, pin.by ? P.pinnedBy(pin.by) : P.pinned);

function pinButton(model, isPinned) {
  const word = isPinned ? P.unpin : P.doPin;
  const press = () => ask(isPinned ? "/unpin" : "/pin", { model }, isPinned ? P.unpinned(model) : P.nowPinned(model));
  return h("button", { onclick: press, "aria-label": `${word} ${model}` }, word);
}

/** Send a change; show `done` or the error. */
async function ask(path, body, done) {
  problem = notice = null;
  try {
    await json("POST", path, body);
    notice = done;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem = error.message;
  }
  await look();
}

// --- leases -----------------------------------------------------------------------------------------

function leaseTable() {
  const nowS = Date.now() / 1000;
  const rows = answer.leases.map((lease) => {
    const owner = lease.owner || P.someone;
    const press = () => ask(`/leases/${lease.lease}/ask-back`, {}, P.asked(owner));
    return h(
      "tr", { "data-key": lease.lease },
      h("td", {}, h("strong", {}, owner), lease.yields_to && h("span", { class: "pill warn" }, P.askedFor(lease.yields_to))),
      h("td", {}, h("span", { class: "chip" }, lease.node_name)),
      h("td", { class: "n" }, bytes(lease.size_bytes)),
      h("td", { class: "n wide-only" }, span(Math.max(0, Math.round(nowS - lease.at_s)))),
      h("td", { class: "wide-only" }, lease.lease),
      h("td", { class: "n" }, h("button", { onclick: press, "aria-label": `${P.askBack} ${lease.lease}` }, P.askBack)),
    );
  });
  return table([P.owner, P.node, [P.size, "n"], [P.heldFor, "n wide-only"], [P.lease, "wide-only"], [P.askBack, "n hush"]], rows);
}

// --- clients ----------------------------------------------------------------------------------------

function clientTable() {
  const nowS = Date.now() / 1000;
  const clients = asking.clients.filter((client) => client.known_by !== null).slice(0, MOST_CLIENTS);
  if (!clients.length) return h("p", { class: "dim" }, P.noClients);
  const rows = clients.map((client) =>
    h(
      "tr", { "data-key": `${client.known_by} ${client.client}` },
      h("td", {}, h("strong", {}, client.client), client.rests_s > 0 && h("span", { class: "pill warn" }, P.rests(span(Math.ceil(client.rests_s)))), client.profile && h("span", { class: "pill quiet" }, P.profile)),
      h("td", { class: "wide-only" }, P.knownBy[client.known_by]),
      h("td", { class: "n" }, number(client.requests)),
      h("td", { class: "n wide-only" }, number(client.failed)),
      h("td", { class: "n" }, number(client.refused)),
      h("td", { class: "n" }, number(client.waiting)),
      h("td", { class: "n wide-only" }, P.tokens(number(Math.round(client.mean_prompt_tokens)), number(Math.round(client.mean_completion_tokens)))),
      h("td", { class: "n" }, client.last_seen_at_s ? P.ago(span(Math.max(0, Math.round(nowS - client.last_seen_at_s)))) : P.now),
    ),
  );
  return table([P.client, [P.known, "wide-only"], [P.requests, "n"], [P.failed, "n wide-only"], [P.refused, "n"], [P.waiting, "n"], [P.meanTokens, "n wide-only"], [P.seen, "n"]], rows);
}

// --- the last hour ----------------------------------------------------------------------------------

/** Return the length of the timeline: since the gateway began recording, at most an hour. */
function drawnS(nowS) {
  const knownS = answer.loads.since_s === null ? 0 : nowS - answer.loads.since_s;
  return DRAWN_S.find((seconds) => seconds >= knownS) ?? HOUR_S;
}

/** Return the spans of each instance since `fromS`: `{model, instance, kind, from, to}`. A failure is a
 * span of length 0. */
function spansOf(snapshot, fromS) {
  const copies = new Map(snapshot.instances.map((entry) => [entry.instance, { model: entry.model, changes: [], status: entry.status }]));
  for (const change of answer.loads.changes) {
    if (!copies.has(change.instance)) copies.set(change.instance, { model: change.model, changes: [] });
    copies.get(change.instance).changes.push(change);
  }
  const spans = [];
  for (const [instance, { model, changes, status }] of copies) {
    const first = changes[0];
    let open = { kind: first ? BEFORE[first.what] : OF_STATUS[status], from: -Infinity };
    const end = (to) => open.kind && to > fromS && spans.push({ model, instance, kind: open.kind, from: Math.max(open.from, fromS), to });
    for (const change of changes) {
      end(change.at_s);
      open = { kind: OPENS[change.what], from: change.at_s };
      if (change.what === "failed") spans.push({ model, instance, kind: "failed", from: change.at_s, to: change.at_s });
    }
    end(snapshot.at_s);
  }
  return spans;
}

/** Return rows of spans by model, so that instances in a row do not overlap. */
function lanesOf(spans) {
  const lanes = new Map();
  for (const model of [...new Set(spans.map((entry) => entry.model))].sort()) {
    const rows = [];
    const copies = copiesOf(spans, model);
    const inOrder = [...copies.values()].sort((a, b) => a[0].from - b[0].from);
    for (const copy of inOrder) {
      const row = rows.find((others) => others.at(-1).to <= copy[0].from + 0.001);
      if (row) row.push(...copy);
      else rows.push([...copy]);
    }
    lanes.set(model, rows);
  }
  return lanes;
}

function copiesOf(spans, model) {
  const copies = new Map();
  for (const entry of spans) if (entry.model === model) copies.set(entry.instance, [...(copies.get(entry.instance) ?? []), entry]);
  return copies;
}

function timeline(snapshot) {
  const nowS = snapshot.at_s;
  const wholeS = drawnS(nowS);
  const fromS = nowS - wholeS;
  const lanes = lanesOf(spansOf(snapshot, fromS));
  if (!lanes.size) return h("p", { class: "dim" }, P.noLoads);
  const width = Math.max(280, Math.min(MOST_WIDTH, root.clientWidth - 90));
  const x = (atS) => (width * (Math.min(nowS, Math.max(fromS, atS)) - fromS)) / wholeS;
  let top = 0;
  const drawn = [...lanes].map(([model, rows]) => {
    const lane = s(
      "g", { "data-key": model },
      s("text", { class: "name", x: 0, y: top + 13 }, shortened(model, Math.floor(width / 7.5))),
      rows.map((row, at) => row.map((entry) => bar(entry, x, top + LANE.label + at * (LANE.bar + LANE.gap)))));
    top += LANE.label + rows.length * (LANE.bar + LANE.gap) + LANE.space;
    return lane;
  });
  const { since_s: sinceS, changes } = answer.loads;
  const count = (...whats) => changes.filter((entry) => whats.includes(entry.what)).length;
  const label = P.described(span(wholeS), count("ready"), count("unloaded"), count("failed", "lost"));
  return h(
    "figure", { class: "hours" },
    s("svg", { viewBox: `0 0 ${width} ${top + 18}`, width, role: "img", "aria-label": label },
      QUARTERS.map((part) => s("line", { class: "grid", x1: width * (1 - part), x2: width * (1 - part), y1: 0, y2: top })),
      sinceS !== null && x(sinceS) > 1 && s("rect", { class: "before", x: 0, y: 0, width: x(sinceS), height: top }, s("title", {}, P.before)),
      drawn,
      QUARTERS.filter((part) => width > NARROW || Number.isInteger(2 * part)).map((part) =>
        s("text", { class: `tick ${part === 1 ? "first" : part ? "middle" : "last"}`, x: width * (1 - part), y: top + 14 }, part ? P.ago(span(wholeS * part)) : P.now))),
    sinceS !== null && sinceS > nowS - HOUR_S + 1 && h("figcaption", { class: "dim" }, P.whole(clock(sinceS))),
  );
}

function bar(entry, x, top) {
  if (entry.kind === "failed") {
    const at = Math.max(4, x(entry.from));
    return s("path", { class: "given-up", d: `M${at - 4} ${top + 2}l8 8m0 -8l-8 8` }, s("title", {}, P.spanOf(entry.model, P.whats.failed, clock(entry.from), null)));
  }
  const width = Math.max(1.5, x(entry.to) - x(entry.from));
  const title = P.spanOf(entry.model, P.whats[entry.kind], clock(entry.from), clock(entry.to));
  return s("rect", { class: `span ${entry.kind}`, x: x(entry.from), y: top, width, height: LANE.bar, rx: Math.min(2, width / 2) }, s("title", {}, title));
}

const legend = () =>
  h("p", { class: "legend" }, ["loading", "ready", "unloading", "lost"].map((kind) => h("span", {}, h("i", { class: `span ${kind}` }), P.whats[kind])));

function changeTable() {
  const { changes } = answer.loads;
  if (!changes.length) return null;
  const latest = [...changes].reverse();
  const rows = latest.slice(0, showsAll ? undefined : FEW).map((change) =>
    h(
      "tr", { "data-key": `${change.index} ${change.instance}` },
      h("td", { class: "at" }, clock(change.at_s)),
      h("td", {}, h("span", { class: `pill ${TONES[change.what] ?? ""}` }, P.whats[change.what] ?? change.what)),
      h("td", { class: "name" }, h("strong", {}, change.model)),
      h("td", { class: "wide-only" }, change.nodes.map((node) => h("span", { class: "chip" }, nameOf(node)))),
      h("td", { class: "n wide-only" }, bytes(change.bytes)),
      h("td", { class: "why" }, words(change.why)),
    ),
  );
  const turn = () => {
    showsAll = !showsAll;
    draw();
  };
  return [
    table([P.when, P.what, P.model, [P.onNodes, "wide-only"], [P.promised, "n wide-only"], P.why], rows),
    changes.length > FEW && h("button", { class: "plain", onclick: turn, "aria-expanded": String(showsAll) }, showsAll ? P.fewer : P.all(changes.length)),
  ];
}

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
