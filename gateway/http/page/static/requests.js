// Requests: those that are open at this node's gateway, those that ended last, each with where its
// time went, and those that were traced, each with what was done for it when.

import { ApiError, ask, json } from "./api.js";
import { clock, h, number, show, span, words } from "./dom.js";
import { live, nameOf } from "./live.js";
import { T } from "./texts.js";

const R = T.requests;
const OPEN_MS = 1000;
const RECENT_EVERY = 3;
const PARTS = [["load", "load_s"], ["queue", "queue_s"], ["prefill", "prefill_s"], ["decode", "decode_s"]];

let root = null;
let timer = null;
let rounds = 0;
let queue = null;
let recent = null;
let problem = null;
let told = null;
let traces = null;
let tracing = null;
let shown = null;
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

/** Do what a button asks for, and look again. */
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
      h("section", {}, h("div", { class: "bar" }, h("h2", {}, R.traces.title), tracingBar()), traceTable(), shown && waterfall(shown))),
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
  const rows = recent.map((one) =>
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
  if (!traces.length) return h("p", { class: "dim" }, X.none);
  const rows = traces.map((one) => {
    const isShown = shown?.request === one.request;
    const turn = () => act(async () => (shown = isShown ? null : await json("GET", `/v1/traces/${encodeURIComponent(one.request)}/raw`)));
    return h(
      "tr", { "data-key": `${one.request} ${one.ended_at_s}` },
      h("td", { class: "n" }, clock(one.ended_at_s)),
      h("td", { class: "name" }, one.model ?? "–"),
      h("td", { class: "wide-only" }, h("code", {}, one.request)),
      h("td", { class: "wide-only" }, X.whys[one.why] ?? one.why),
      h("td", { class: "n" }, span(one.seconds)),
      h("td", {}, h("button", { onclick: turn, "aria-expanded": String(isShown), "aria-label": `${isShown ? X.hide : X.show} ${one.request}` }, isShown ? X.hide : X.show)),
    );
  });
  return table([[R.ended, "n"], R.model, [R.request, "wide-only"], [X.why, "wide-only"], [R.took, "n"], [X.show, "hush"]], rows);
}

/** Return what was done for a traced request when: a row for each span, its bar where it was. */
function waterfall(trace) {
  const X = R.traces;
  const lead = trace.lead;
  const where = (one) => (lead.choices > 1 ? `${X.runner}, ${X.choice(one.choice)}` : X.runner);
  const spans = trace.gateway.map((one) => ({ ...one, where: X.gateway, side: "gateway" }));
  if (lead) spans.push(...lead.spans.map((one) => ({ ...one, where: where(one), side: one.name })));
  const part = (seconds) => `${Math.min(100, Math.max(0, (seconds / trace.seconds) * 100))}%`;
  const rows = spans.map((one) => {
    const took = one.ended_s - one.began_s;
    const name = X.names[one.name] ?? one.name;
    const label = X.span(name, span(one.began_s), span(took));
    return h(
      "tr", {},
      h("td", { class: "wide-only dim" }, one.where),
      h("td", {}, name),
      h("td", { class: "when" }, h("div", { class: "track", role: "img", "aria-label": label, title: label },
        h("i", { class: `part ${one.side}`, style: { left: part(one.began_s), width: part(took) } }))),
      h("td", { class: "n" }, span(took)),
      h("td", { class: "n wide-only" }, one.tokens ? number(one.tokens) : ""),
    );
  });
  const note = !lead ? X.silent : lead.clock.how === "measured" ? X.error(span(lead.clock.error_s)) : null;
  return h(
    "div", { class: "waterfall", "data-key": trace.request },
    h("div", { class: "bar" }, h("h3", {}, X.of(trace.request)), h("button", { onclick: () => act(() => save(trace.request)) }, X.save)),
    table([[X.where, "wide-only"], X.what, X.when, [R.took, "n"], [R.tokens, "n wide-only"]], rows),
    note && h("p", { class: "dim" }, note),
  );
}

async function save(request) {
  const answer = await ask("GET", `/v1/traces/${encodeURIComponent(request)}`);
  const link = h("a", { href: URL.createObjectURL(await answer.blob()), download: `${request}.trace.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), OPEN_MS);
}

const rateOf = (one) => (one.decode_s > 0 && one.completion_tokens > 1 ? (one.completion_tokens - 1) / one.decode_s : null);

/** Return a request's time as parts of a bar; the whole width is the longest request's. */
function partsOf(one, most) {
  const known = PARTS.map(([name, field]) => [name, one[field] ?? 0]);
  const rest = Math.max(0, one.seconds - known.reduce((sum, [, took]) => sum + took, 0));
  const parts = [...known, ["rest", rest]].filter(([, took]) => took > 0);
  const label = parts.map(([name, took]) => R.part(R.parts[name], span(took))).join(", ");
  return h("div", { class: "parts", role: "img", "aria-label": label, title: label },
    parts.map(([name, took]) => h("i", { class: `part ${name}`, "data-key": name, style: { width: `${(took / most) * 100}%` } })));
}

/** Return a table of columns: a title, or a title and a class. */
export function table(columns, rows) {
  const heads = columns.map((column) => {
    const [title, kind] = Array.isArray(column) ? column : [column, null];
    return h("th", { scope: "col", class: kind }, title);
  });
  return h("div", { class: "scroll", tabindex: "0", role: "group" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}
