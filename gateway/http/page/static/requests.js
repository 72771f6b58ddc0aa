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
let told = null;
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
    told = null;
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
  const kept = new URLSearchParams({ limit: "20" });
  if (wanted.model) kept.set("model", wanted.model);
  tracing = await json("GET", "/v1/tracing");
  traces = (await json("GET", `/v1/traces?${kept}`)).traces;
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
      told && h("p", { class: "good", role: "status" }, told),
      h("section", {}, h("h2", {}, R.open), openTable()),
      h("section", {}, h("div", { class: "bar" }, h("h2", {}, R.recent), filters()), recentTable()),
      h("section", {}, h("div", { class: "bar" }, h("h2", {}, R.traces.title), tracingBar()), traceTable(), shown && waterfall(shown.trace))),
  );
}

function openTable() {
  if (!queue) return h("p", { class: "dim" }, T.loading);
  if (!queue.requests.length) return h("p", { class: "dim" }, R.noOpen);
  const rows = queue.requests.map((one) =>
    h(
      "tr", { "data-key": one.request },
      h("td", { class: "name" }, one.model),
      h("td", { class: "wide-only" }, h("code", {}, one.request)),
      h("td", { class: "wide-only" }, one.client ?? ""),
      h("td", {}, h("span", { class: one.waiting ? "pill warn" : "pill good" }, one.waiting ? R.waiting : R.running)),
      h("td", { class: "n wide-only" }, number(one.tokens)),
      h("td", { class: "n" }, span(one.seconds)),
      h("td", { class: "n" }, h("button", { onclick: () => cancel(one.request), "aria-label": `${R.cancel} ${one.request}` }, R.cancel)),
    ),
  );
  return table([R.model, [R.request, "wide-only"], [R.client, "wide-only"], R.state, [R.tokens, "n wide-only"], [R.since, "n"], [R.cancel, "n hush"]], rows);
}

async function cancel(request) {
  try {
    await json("POST", `/v1/cancel/${encodeURIComponent(request)}`);
    told = R.cancelled;
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
  const most = Math.max(...recent.map((one) => one.seconds), 0.001);
  const turn = () => {
    isAll = !isAll;
    draw();
  };
  const rows = (isAll ? recent : recent.slice(0, FEW)).map((one) =>
    h(
      "tr", { "data-key": one.request },
      h("td", { class: "n" }, clock(one.ended_at_s)),
      h("td", { class: "name" }, one.model ?? "–"),
      h("td", { class: "wide-only dim" }, one.dialect),
      h("td", { class: "n wide-only", title: R.cached(number(one.cached_tokens)) }, `${number(one.prompt_tokens)} / ${number(one.completion_tokens)}`),
      h("td", { class: "n wide-only" }, span(one.ttft_s)),
      h("td", { class: "n" }, span(one.seconds)),
      h("td", { class: "bar-cell wide-only" }, partsOf(one, most)),
      h("td", { class: "n wide-only" }, number(rateOf(one))),
      h("td", { title: one.node ? nameOf(one.node) : null }, h("span", { class: one.error ? "pill bad" : "pill" }, one.error ?? one.finish ?? String(one.status))),
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
  const rows = (shown ? [shown.row] : traces).map((one) => {
    const isShown = shown !== null;
    const turn = () =>
      act(async () => {
        shown = isShown ? null : { row: one, trace: await json("GET", `/v1/traces/${encodeURIComponent(one.request)}/raw`) };
        [step, drawn] = [null, {}];
      });
    return h(
      "tr", { "data-key": `${one.request} ${one.ended_at_s}` },
      h("td", { class: "n" }, clock(one.ended_at_s)),
      h("td", { class: "name" }, one.model ?? "–"),
      h("td", { class: "wide-only" }, h("code", {}, one.request)),
      h("td", { class: "wide-only" }, X.whys[one.why] ?? one.why),
      h("td", { class: "n" }, span(one.seconds)),
      h("td", { class: "n" }, h("button", { onclick: turn, "aria-expanded": String(isShown), "aria-label": `${isShown ? X.hide : X.show} ${one.request}` }, isShown ? X.hide : X.show)),
    );
  });
  return table([[R.ended, "n"], R.model, [R.request, "wide-only"], [X.why, "wide-only"], [R.took, "n"], [X.show, "n hush"]], rows);
}

/** Return the waterfall of a trace: a row for each span, with a bar at its time. Consecutive spans of
 * one name, such as steps, share a row. */
function waterfall(trace) {
  const X = R.traces;
  const lead = trace.lead;
  const where = (one) => (lead.choices > 1 ? `${X.runner}, ${X.choice(one.choice)}` : X.runner);
  const spans = trace.gateway.map((one) => ({ ...one, where: X.gateway, side: "gateway" }));
  if (lead) spans.push(...lead.spans.map((one) => ({ ...one, where: where(one), side: one.name })));
  const part = (seconds) => `${Math.min(100, Math.max(0, (seconds / trace.seconds) * 100))}%`;
  const runs = [];
  for (const one of spans)
    if (runs.at(-1)?.[0].name === one.name && runs.at(-1)[0].where === one.where) runs.at(-1).push(one);
    else runs.push([one]);
  const rows = runs.map((run) => {
    const [first] = run;
    const took = run.at(-1).ended_s - first.began_s;
    const sum = (field) => run.reduce((all, one) => all + (one[field] ?? 0), 0);
    const longest = Math.max(...run.map((one) => one.longest_s ?? 0));
    const steps = sum("steps") > 1 ? X.steps(number(sum("steps")), span(longest)) : null;
    const name = X.names[first.name] ?? first.name;
    const label = [X.span(name, span(first.began_s), span(took)), steps].filter(Boolean).join("; ");
    const bar = (one) => h("i", { class: `part ${one.side}`, style: { left: part(one.began_s), width: part(one.ended_s - one.began_s) } });
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
  const told = trace.ranks.filter((one) => one.told);
  const steps = stepsOf(told);
  const at = steps.indexOf(step);
  const isWhole = at < 0;
  const links = trace.links.filter((link) => isWhole || link.step === step);
  const turns = ({ turns }) => turns.filter((turn) => isWhole || turn.step === step);
  const stretch = isWhole ? [0, trace.seconds] : stretchOf(told.flatMap(turns), links);
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
        isWhole && told.some((one) => summedTurns(one).length) && h("span", {}, L.pale))),
    table([L.rankHead, L.did, [L.clock, "n"]], trace.ranks.map((one) => rankRow(one, turns))),
    links.length ? linkTable(trace, links, isWhole) : h("p", { class: "dim" }, L.noLinks),
    links.length > 0 && h("p", { class: "dim" }, isWhole ? L.someLinks : L.wrong),
  );
}

function rankRow(one, turns) {
  const named = h("td", {}, h("strong", {}, L.rank(one.rank)), " ", h("span", { class: "chip" }, nameOf(one.node)));
  if (!one.told) return h("tr", { "data-key": one.rank }, named, h("td", {}, h("span", { class: "pill warn" }, L.untold), ` ${one.why}`), h("td", { class: "n" }, "–"));
  const sums = PHASES.map((name) => [name, turns(one).reduce((sum, turn) => sum + (turn.seconds[name] ?? 0), 0)]);
  const did = sums.filter(([, seconds]) => seconds > 0).map(([name, seconds]) => R.part(L.phases[name][1], span(seconds).replace(" ", "\u00a0")));
  return h("tr", { "data-key": one.rank }, named, h("td", {}, did.join(" · ") || L.nothing), h("td", { class: "n" }, L.within(span(one.clock.error_s))));
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
    const total = isWhole && trace.ranks.find((one) => one.rank === from)?.totals.find((one) => one.what === what && one.peer === to && one.sent);
    return h(
      "tr", { "data-key": way },
      h("td", {}, isWhole ? null : h("b", { class: "number" }, `${way + 1} `), L.crosses[what] ?? what),
      h("td", {}, L.way(from, to)),
      isWhole && h("td", { class: "n wide-only" }, L.count(number(total?.count ?? all.length), number(all.length))),
      h("td", { class: "n wide-only" }, bytes(total ? total.bytes : all.reduce((sum, link) => sum + link.bytes, 0))),
      h("td", { class: "n" }, span(Math.max(0, took.reduce((sum, one) => sum + one, 0) / took.length))),
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
  const bar = (kind, y, height, names) => (one) => {
    const [start, end] = [x(one.began_s), x(one.ended_s)];
    if (one.ended_s <= from || one.began_s >= to || end - start < 0.2) return null;
    const [short, long] = names(one);
    return [
      s("rect", { class: `${kind} ${one.name} ${one.isSum ? "sum" : ""}`, x: start.toFixed(1), y, width: Math.max(0.6, end - start).toFixed(1), height },
        s("title", {}, R.part(long, span(one.ended_s - one.began_s)))),
      end - start > 6.6 * short.length + 4 && s("text", { class: `on ${kind} ${one.name} ${one.isSum ? "sum" : ""}`, x: ((start + end) / 2).toFixed(1), y: y + height / 2 + 3.5 }, short),
    ];
  };
  const lane = (one, at) => {
    const y = LANE * at + 2;
    const phase = bar("phase", y + 15, 20, ({ name }) => L.phases[name]);
    const turn = bar("turn", y, 14, (each) => [step === null ? L.turns[each.name] : L.step(each.step), L.turns[each.name]]);
    return s(
      "g", { "data-key": one.rank },
      s("text", { class: "name", x: 0, y: y + 12 }, L.rank(one.rank)),
      s("text", { class: "line", x: 0, y: y + 28 }, shortened(nameOf(one.node), Math.floor(left / 7))),
      one.told
        ? [(step === null ? mergedTurns(one.turns) : one.turns).map(turn), one.parts.map(phase), summedTurns(one).flatMap(sumsOf).map(phase)]
        : [s("rect", { class: "untold", x: left, y, width: width - left - 2, height: 35 }), s("text", { class: "line", x: left + 8, y: y + 22 }, shortened(`${L.untold}: ${one.why}`, Math.floor((width - left) / 6.4)))],
    );
  };
  const places = new Map(trace.ranks.map((one, at) => [one.rank, LANE * at + 2]));
  const svg = s(
    "svg", { "data-key": key, viewBox: `0 0 ${width} ${bottom + 16}`, width, role: "img", "aria-label": L.described(trace.ranks.length, trace.ranks.filter((one) => !one.told).length, span(to - from)) },
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

const rateOf = (one) => (one.decode_s > 0 && one.completion_tokens > 1 ? (one.completion_tokens - 1) / one.decode_s : null);

/** Return a request's time as parts of a bar; the longest request has the whole width. */
function partsOf(one, most) {
  const known = PARTS.map(([name, field]) => [name, one[field] ?? 0]);
  const rest = Math.max(0, one.seconds - known.reduce((sum, [, took]) => sum + took, 0));
  const parts = [...known, ["rest", rest]].filter(([, took]) => took > 0);
  const label = parts.map(([name, took]) => R.part(R.parts[name], span(took))).join(", ");
  return h("div", { class: "parts", role: "img", "aria-label": label, title: label },
    parts.map(([name, took]) => h("i", { class: `part ${name}`, "data-key": name, style: { width: `${(took / most) * 100}%` } })));
}
