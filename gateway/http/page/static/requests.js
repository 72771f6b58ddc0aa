// Requests: open requests of this node's gateway, recent requests with the time of each phase, and
// traced requests with their waterfall.

import { ApiError, ask, json } from "./api.js";
import { PHASES, bytes, clock, h, mergedTurns, number, s, shortened, show, span, stepsOf, stretchOf, summedTurns, sumsOf, table, words } from "./dom.js";
import { live, nameOf } from "./live.js";
import { T } from "./texts.js";

const R = T.requests;
const L = R.traces.lanes;
const OPEN_MS = 1000;
const RECENT_EVERY = 3;
const FEW = 12;
const LANE = 52;
const MOST_WIDTH = 1160;
const NARROW = 500;
const MOST_ARROWS = 40;
const STEEP = 10;
const PARTS = [["load", "load_s"], ["queue", "queue_s"], ["prefill", "prefill_s"], ["decode", "decode_s"]];

let root = null;
let timer = null;
let rounds = 0;
let queue = null;
let recent = null;
let isAll = false;
let problem = null;
let notice = null;
let traces = null;
let tracing = null;
let shown = null;
let step = null;
let drawn = {};
const wanted = { errors: false, model: "" };

export const requests = {
  open(main) {
    root = main;
    rounds = 0;
    draw();
    look();
  },
  close() {
    clearTimeout(timer);
    root = null;
    notice = null;
  },
};

async function look() {
  clearTimeout(timer);
  const mine = root;
  try {
    queue = await json("GET", "/queue");
    if (rounds % RECENT_EVERY === 0) await lookBack();
    problem = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem = error.status === 0 ? null : error.message;
  }
  rounds += 1;
  if (root === null || root !== mine) return;
  draw();
  timer = setTimeout(look, OPEN_MS);
}

async function lookBack() {
  const query = new URLSearchParams({ limit: "40", errors_only: String(wanted.errors) });
  if (wanted.model) query.set("model", wanted.model);
  recent = (await json("GET", `/requests/recent?${query}`)).requests;
  const traceQuery = new URLSearchParams({ limit: "20" });
  if (wanted.model) traceQuery.set("model", wanted.model);
  tracing = await json("GET", "/v1/tracing");
  traces = (await json("GET", `/v1/traces?${traceQuery}`)).traces;
}

/** Run the action of a button, then reload. */
async function act(deed) {
  try {
    await deed();
    problem = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem = error.message;
    draw();
    return;
  }
  rounds = 0;
  look();
}

function draw() {
  if (root === null) return;
  show(
    root,
    h("header", { class: "head" }, h("h1", {}, R.title), queue && h("p", { class: "dim" }, R.summary(queue.running, queue.waiting))),
    h("div", { class: "body" },
      problem && h("p", { class: "bad", role: "alert" }, problem),
      notice && h("p", { class: "good", role: "status" }, notice),
      h("section", {}, h("h2", {}, R.open), openTable()),
      h("section", {}, h("div", { class: "bar" }, h("h2", {}, R.recent), filters()), recentTable()),
      h("section", {}, h("div", { class: "bar" }, h("h2", {}, R.traces.title), tracingBar()), traceTable(), shown && waterfall(shown.trace))),
  );
}

function openTable() {
  if (!queue) return h("p", { class: "dim" }, T.loading);
  if (!queue.requests.length) return h("p", { class: "dim" }, R.noOpen);
  const rows = queue.requests.map((request) =>
    h(
      "tr", { "data-key": request.request },
      h("td", { class: "name" }, request.model),
      h("td", { class: "wide-only" }, h("code", {}, request.request)),
      h("td", { class: "wide-only" }, request.client ?? ""),
      h("td", {}, h("span", { class: request.waiting ? "pill warn" : "pill good" }, request.waiting ? R.waiting : R.running)),
      h("td", { class: "n wide-only" }, number(request.tokens)),
      h("td", { class: "n" }, span(request.seconds)),
      h("td", { class: "n" }, h("button", { onclick: () => cancel(request.request), "aria-label": `${R.cancel} ${request.request}` }, R.cancel)),
    ),
  );
  return table([R.model, [R.request, "wide-only"], [R.client, "wide-only"], R.state, [R.tokens, "n wide-only"], [R.since, "n"], [R.cancel, "n hush"]], rows);
}

async function cancel(request) {
  try {
    await json("POST", `/v1/cancel/${encodeURIComponent(request)}`);
    notice = R.cancelled;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem = error.message;
  }
  rounds = 0;
  look();
}

function filters() {
  const names = [...new Set([...(live.models ?? []).map((model) => model.id), wanted.model])].filter(Boolean);
  const changed = (change) => (event) => {
    change(event.target);
    rounds = 0;
    look();
  };
  return h(
    "div", { class: "row" },
    h("label", { class: "check" }, h("input", { type: "checkbox", onchange: changed((box) => (wanted.errors = box.checked)) }), R.errorsOnly),
    h("select", { "aria-label": R.model, onchange: changed((list) => (wanted.model = list.value)) },
      h("option", { value: "" }, R.anyModel), names.map((name) => h("option", { value: name }, name))),
  );
}

function recentTable() {
  if (!recent) return h("p", { class: "dim" }, T.loading);
  if (!recent.length) return h("p", { class: "dim" }, R.noRecent);
  const most = Math.max(...recent.map((request) => request.seconds), 0.001);
  const turn = () => {
    isAll = !isAll;
    draw();
  };
  const rows = (isAll ? recent : recent.slice(0, FEW)).map((request) =>
    h(
      "tr", { "data-key": request.request },
      h("td", { class: "n" }, clock(request.ended_at_s)),
      h("td", { class: "name" }, request.model ?? "–"),
      h("td", { class: "wide-only dim" }, request.dialect),
      h("td", { class: "n wide-only", title: R.cached(number(request.cached_tokens)) }, `${number(request.prompt_tokens)} / ${number(request.completion_tokens)}`),
      h("td", { class: "n wide-only" }, span(request.ttft_s)),
      h("td", { class: "n" }, span(request.seconds)),
      h("td", { class: "bar-cell wide-only" }, partsOf(request, most)),
      h("td", { class: "n wide-only" }, number(rateOf(request))),
      h("td", { title: request.node ? nameOf(request.node) : null }, h("span", { class: request.error ? "pill bad" : "pill" }, request.error ?? request.finish ?? String(request.status))),
    ),
  );
  return [
    h("p", { class: "legend wide-only" }, [...PARTS, ["rest"]].map(([name]) => h("span", {}, h("i", { class: `part ${name}` }), R.parts[name]))),
    table([[R.ended, "n"], R.model, [R.dialect, "wide-only"], [R.inOut, "n wide-only"], [R.ttft, "n wide-only"], [R.took, "n"], [R.where, "wide-only"], [R.rate, "n wide-only"], R.outcome], rows),
    recent.length > FEW && h("button", { class: "plain", onclick: turn, "aria-expanded": String(isAll) }, isAll ? R.fewer : R.all(recent.length)),
  ];
}

function tracingBar() {
  const X = R.traces;
  if (!tracing) return null;
  if (!tracing.keeps) return h("p", { class: "dim" }, words(X.cannot));
  const set = () => act(() => json("PUT", "/v1/tracing", { on: !tracing.on }));
  return h("div", { class: "row" }, h("span", { class: "dim" }, words(X.on(tracing.ratio))), h("button", { onclick: set }, tracing.on ? X.stop : X.start));
}

function traceTable() {
  const X = R.traces;
  if (!traces) return h("p", { class: "dim" }, T.loading);
  if (!traces.length && !shown) return h("p", { class: "dim" }, X.none);
  // a shown trace is the only row, above its waterfall
  const rows = (shown ? [shown.row] : traces).map((row) => {
    const isShown = shown !== null;
    const turn = () =>
      act(async () => {
        shown = isShown ? null : { row, trace: await json("GET", `/v1/traces/${encodeURIComponent(row.request)}/raw`) };
        [step, drawn] = [null, {}];
      });
    return h(
      "tr", { "data-key": `${row.request} ${row.ended_at_s}` },
      h("td", { class: "n" }, clock(row.ended_at_s)),
      h("td", { class: "name" }, row.model ?? "–"),
      h("td", { class: "wide-only" }, h("code", {}, row.request)),
      h("td", { class: "wide-only" }, X.whys[row.why] ?? row.why),
      h("td", { class: "n" }, span(row.seconds)),
      h("td", { class: "n" }, h("button", { onclick: turn, "aria-expanded": String(isShown), "aria-label": `${isShown ? X.hide : X.show} ${row.request}` }, isShown ? X.hide : X.show)),
    );
  });
  return table([[R.ended, "n"], R.model, [R.request, "wide-only"], [X.why, "wide-only"], [R.took, "n"], [X.show, "n hush"]], rows);
}

/** Return the waterfall of a trace: a row for each span, with a bar at its time. Consecutive spans of
 * one name, such as steps, share a row. */
function waterfall(trace) {
  const X = R.traces;
  const lead = trace.lead;
  const where = (entry) => (lead.choices > 1 ? `${X.runner}, ${X.choice(entry.choice)}` : X.runner);
  const spans = trace.gateway.map((entry) => ({ ...entry, where: X.gateway, side: "gateway" }));
  if (lead) spans.push(...lead.spans.map((entry) => ({ ...entry, where: where(entry), side: entry.name })));
  const part = (seconds) => `${Math.min(100, Math.max(0, (seconds / trace.seconds) * 100))}%`;
  const runs = [];
  for (const entry of spans)
    if (runs.at(-1)?.[0].name === entry.name && runs.at(-1)[0].where === entry.where) runs.at(-1).push(entry);
    else runs.push([entry]);
  const rows = runs.map((run) => {
    const [first] = run;
    const took = run.at(-1).ended_s - first.began_s;
    const sum = (field) => run.reduce((all, entry) => all + (entry[field] ?? 0), 0);
    const longest = Math.max(...run.map((entry) => entry.longest_s ?? 0));
    const steps = sum("steps") > 1 ? X.steps(number(sum("steps")), span(longest)) : null;
    const name = X.names[first.name] ?? first.name;
    const label = [X.span(name, span(first.began_s), span(took)), steps].filter(Boolean).join("; ");
    const bar = (entry) => h("i", { class: `part ${entry.side}`, style: { left: part(entry.began_s), width: part(entry.ended_s - entry.began_s) } });
    return h(
      "tr", {},
      h("td", { class: "wide-only dim" }, first.where),
      h("td", {}, name, steps && h("small", {}, steps)),
      h("td", { class: "when" }, h("div", { class: "track", role: "img", "aria-label": label, title: label }, run.map(bar))),
      h("td", { class: "n" }, span(took)),
      h("td", { class: "n wide-only" }, sum("tokens") ? number(sum("tokens")) : ""),
    );
  });
  const note = !lead ? X.silent : lead.clock.how === "measured" ? X.error(span(lead.clock.error_s)) : null;
  return h(
    "div", { class: "waterfall", "data-key": trace.request },
    h("div", { class: "bar" }, h("h3", {}, X.of(trace.request)), h("button", { onclick: () => act(() => save(trace.request)) }, X.save)),
    table([[X.where, "wide-only"], X.what, X.when, [R.took, "n"], [R.tokens, "n wide-only"]], rows),
    note && h("p", { class: "dim" }, note),
    trace.ranks?.length > 0 && lanes(trace),
  );
}

async function save(request) {
  const answer = await ask("GET", `/v1/traces/${encodeURIComponent(request)}`);
  const link = h("a", { href: URL.createObjectURL(await answer.blob()), download: `${request}.trace.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), OPEN_MS);
}

// --- lanes: what each rank of a group did ------------------------------------------------------------

/** Return the lanes of the ranks as a picture and as tables, for the whole request or for one step. */
function lanes(trace) {
  const ranks = trace.ranks.filter((rank) => rank.told);
  const steps = stepsOf(ranks);
  const at = steps.indexOf(step);
  const isWhole = at < 0;
  const links = trace.links.filter((link) => isWhole || link.step === step);
  const turns = ({ turns }) => turns.filter((turn) => isWhole || turn.step === step);
  const stretch = isWhole ? [0, trace.seconds] : stretchOf(ranks.flatMap(turns), links);
  const go = (wanted) => () => {
    step = wanted ?? null;
    draw();
  };
  return h(
    "section", { class: "lanes" },
    h("div", { class: "bar" },
      h("div", {}, h("h3", {}, L.title), h("p", { class: "dim", role: "status" }, isWhole ? L.whole : L.of(step, span(stretch[0]), span(stretch[1] - stretch[0])))),
      steps.length > 0 && h("div", { class: "row" },
        h("button", { onclick: go(null), "aria-pressed": String(isWhole) }, L.showWhole),
        h("button", { onclick: go(steps[at < 0 ? steps.length - 1 : at - 1]) }, L.before),
        h("button", { onclick: go(steps[at + 1]) }, L.after))),
    h("figure", {},
      picture(trace, stretch, isWhole ? [] : links.slice(0, MOST_ARROWS)),
      h("figcaption", { class: "legend" }, PHASES.map((name) => h("span", {}, h("i", { class: `phase ${name}` }), L.phases[name][1])),
        isWhole && ranks.some((rank) => summedTurns(rank).length) && h("span", {}, L.pale))),
    table([L.rankHead, L.did, [L.clock, "n"]], trace.ranks.map((rank) => rankRow(rank, turns))),
    links.length ? linkTable(trace, links, isWhole) : h("p", { class: "dim" }, L.noLinks),
    links.length > 0 && h("p", { class: "dim" }, isWhole ? L.someLinks : L.wrong),
  );
}

function rankRow(rank, turns) {
  const named = h("td", {}, h("strong", {}, L.rank(rank.rank)), " ", h("span", { class: "chip" }, nameOf(rank.node)));
  if (!rank.told) return h("tr", { "data-key": rank.rank }, named, h("td", {}, h("span", { class: "pill warn" }, L.untold), ` ${rank.why}`), h("td", { class: "n" }, "–"));
  const sums = PHASES.map((name) => [name, turns(rank).reduce((sum, turn) => sum + (turn.seconds[name] ?? 0), 0)]);
  const did = sums.filter(([, seconds]) => seconds > 0).map(([name, seconds]) => R.part(L.phases[name][1], span(seconds).replace(" ", "\u00a0")));
  return h("tr", { "data-key": rank.rank }, named, h("td", {}, did.join(" · ") || L.nothing), h("td", { class: "n" }, L.within(span(rank.clock.error_s))));
}

/** Return a row for each transfer of a step, numbered like its arrow, or for each way of the request. */
function linkTable(trace, links, isWhole) {
  const ways = new Map();
  links.forEach((link, at) => {
    const way = isWhole ? `${link.what} ${link.from} ${link.to}` : at;
    ways.set(way, [...(ways.get(way) ?? []), link]);
  });
  const rows = [...ways].map(([way, all]) => {
    const [{ what, from, to }] = all;
    const took = all.map((link) => link.had_s - link.sent_s);
    const total = isWhole && trace.ranks.find((entry) => entry.rank === from)?.totals.find((entry) => entry.what === what && entry.peer === to && entry.sent);
    return h(
      "tr", { "data-key": way },
      h("td", {}, isWhole ? null : h("b", { class: "number" }, `${way + 1} `), L.crosses[what] ?? what),
      h("td", {}, L.way(from, to)),
      isWhole && h("td", { class: "n wide-only" }, L.count(number(total?.count ?? all.length), number(all.length))),
      h("td", { class: "n wide-only" }, bytes(total ? total.bytes : all.reduce((sum, link) => sum + link.bytes, 0))),
      h("td", { class: "n" }, span(Math.max(0, took.reduce((sum, seconds) => sum + seconds, 0) / took.length))),
      isWhole && h("td", { class: "n wide-only" }, span(Math.max(0, ...took))),
      h("td", { class: "n" }, L.within(span(Math.max(...all.map((link) => link.error_s))))),
    );
  });
  const columns = [L.crossing, L.between, isWhole && [L.times, "n wide-only"], [L.bytes, "n wide-only"], [isWhole ? L.mean : R.took, "n"], isWhole && [L.longest, "n wide-only"], [L.clock, "n"]];
  return table(columns.filter(Boolean), rows);
}

/** Return the lanes as a picture; an unchanged picture is reused. */
function picture(trace, [from, to], links) {
  const width = Math.max(280, Math.min(MOST_WIDTH, root.clientWidth - 84));
  const key = [trace.request, trace.began_at_s, step, width].join(" ");
  if (drawn.key === key) return drawn.svg;
  const left = width < NARROW ? 58 : 104;
  const bottom = LANE * trace.ranks.length + 2;
  const x = (at_s) => left + (width - left - 2) * Math.min(1, Math.max(0, (at_s - from) / (to - from)));
  const bar = (kind, y, height, names) => (part) => {
    const [start, end] = [x(part.began_s), x(part.ended_s)];
    if (part.ended_s <= from || part.began_s >= to || end - start < 0.2) return null;
    const [short, long] = names(part);
    return [
      s("rect", { class: `${kind} ${part.name} ${part.isSum ? "sum" : ""}`, x: start.toFixed(1), y, width: Math.max(0.6, end - start).toFixed(1), height },
        s("title", {}, R.part(long, span(part.ended_s - part.began_s)))),
      end - start > 6.6 * short.length + 4 && s("text", { class: `on ${kind} ${part.name} ${part.isSum ? "sum" : ""}`, x: ((start + end) / 2).toFixed(1), y: y + height / 2 + 3.5 }, short),
    ];
  };
  const lane = (rank, at) => {
    const y = LANE * at + 2;
    const phase = bar("phase", y + 15, 20, ({ name }) => L.phases[name]);
    const turn = bar("turn", y, 14, (each) => [step === null ? L.turns[each.name] : L.step(each.step), L.turns[each.name]]);
    return s(
      "g", { "data-key": rank.rank },
      s("text", { class: "name", x: 0, y: y + 12 }, L.rank(rank.rank)),
      s("text", { class: "line", x: 0, y: y + 28 }, shortened(nameOf(rank.node), Math.floor(left / 7))),
      rank.told
        ? [(step === null ? mergedTurns(rank.turns) : rank.turns).map(turn), rank.parts.map(phase), summedTurns(rank).flatMap(sumsOf).map(phase)]
        : [s("rect", { class: "untold", x: left, y, width: width - left - 2, height: 35 }), s("text", { class: "line", x: left + 8, y: y + 22 }, shortened(`${L.untold}: ${rank.why}`, Math.floor((width - left) / 6.4)))],
    );
  };
  const places = new Map(trace.ranks.map((rank, at) => [rank.rank, LANE * at + 2]));
  const svg = s(
    "svg", { "data-key": key, viewBox: `0 0 ${width} ${bottom + 16}`, width, role: "img", "aria-label": L.described(trace.ranks.length, trace.ranks.filter((rank) => !rank.told).length, span(to - from)) },
    (width < NARROW ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((share) => [
      s("line", { class: "grid", x1: left + (width - left - 2) * share, x2: left + (width - left - 2) * share, y1: 0, y2: bottom }),
      s("text", { class: `tick ${share === 0 ? "" : share === 1 ? "last" : "middle"}`, x: left + (width - left - 2) * share, y: bottom + 12 }, span((to - from) * share))]),
    trace.ranks.map(lane),
    links.map((link, at) => arrow(link, at + 1, [x(link.sent_s), x(link.had_s)], [places.get(link.from), places.get(link.to)])),
  );
  drawn = { key, svg };
  return svg;
}

function arrow({ what, from, to, sent_s: sent, had_s: had }, mark, [x1, x2], [above, below]) {
  const isDown = below > above;
  const [y1, y2] = isDown ? [above + 35, below] : [above, below + 35];
  const turn = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
  return s(
    "g", { class: `arrow ${what}` },
    s("title", {}, `${L.crosses[what] ?? what}, ${L.way(from, to)}: ${span(Math.max(0, had - sent))}`),
    s("line", { x1: x1.toFixed(1), y1, x2: x2.toFixed(1), y2 }),
    s("path", { d: "M0 0l-7-3v6z", transform: `translate(${x2.toFixed(1)} ${y2}) rotate(${turn.toFixed(1)})` }),
    s("text", { x: ((x1 + x2) / 2 + (Math.abs(x2 - x1) < STEEP ? STEEP : 0)).toFixed(1), y: (y1 + y2) / 2 + 4 }, mark),
  );
}

// --- a request's time as one bar ----------------------------------------------------------------------

const rateOf = (request) => (request.decode_s > 0 && request.completion_tokens > 1 ? (request.completion_tokens - 1) / request.decode_s : null);

/** Return a request's time as parts of a bar; the longest request has the whole width. */
function partsOf(request, most) {
  const phases = PARTS.map(([name, field]) => [name, request[field] ?? 0]);
  const rest = Math.max(0, request.seconds - phases.reduce((sum, [, took]) => sum + took, 0));
  const parts = [...phases, ["rest", rest]].filter(([, took]) => took > 0);
  const label = parts.map(([name, took]) => R.part(R.parts[name], span(took))).join(", ");
  return h("div", { class: "parts", role: "img", "aria-label": label, title: label },
    parts.map(([name, took]) => h("i", { class: `part ${name}`, "data-key": name, style: { width: `${(took / most) * 100}%` } })));
}
