// Models: loaded instances, models on the nodes' disks, and pulls.

import { ApiError, ask, json, lines, messageOf } from "./api.js";
import { bytes, h, number, percent, show, span, table } from "./dom.js";
import { askState, live, nameOf } from "./live.js";
import { T } from "./texts.js";

const M = T.models;

let root = null;
let preview = null;
let asksToUnload = null;
let told = null;
let problem = null;
let pull = null;
let pullTo = "";

export const models = {
  open(main) {
    root = main;
    draw();
  },
  update() {
    draw();
  },
  close() {
    root = null;
    told = problem = preview = asksToUnload = null;
  },
};

function draw() {
  if (root === null) return;
  const { snapshot } = live;
  const onDisk = modelsOnDisk();
  const copies = snapshot?.instances ?? [];
  show(
    root,
    h("header", { class: "head" }, h("h1", {}, M.title), snapshot && h("p", { class: "dim" }, M.summary(onDisk.length, copies.length))),
    h("div", { class: "body" },
      problem && h("p", { class: "bad", role: "alert" }, problem),
      told && h("p", { class: "good", role: "status" }, told),
      h("section", {}, h("h2", {}, M.loaded), snapshot ? loadedTable(copies) : h("p", { class: "dim" }, T.loading)),
      h("section", {}, h("h2", {}, M.onDisk), live.state ? diskTable(onDisk) : h("p", { class: "dim" }, T.loading)),
      pullSection()),
  );
}

/** Run an action; show `done` or the error. */
async function attempt(act, done) {
  problem = told = null;
  try {
    await act();
    told = done;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem = error.message;
  }
  draw();
}

// --- loaded instances -------------------------------------------------------------------------------

function loadedTable(copies) {
  if (!copies.length) return h("p", { class: "dim" }, M.noneLoaded);
  const rows = copies.map((one) =>
    h(
      "tr", { "data-key": one.instance },
      h("td", {}, h("strong", {}, one.model), one.pinned && h("span", { class: "pill quiet" }, M.pinned)),
      h("td", {}, stateOf(one)),
      h("td", {}, one.ranks.map((rank) => h("span", { class: "chip", title: bytes(rank.promised_bytes) }, nameOf(rank.node)))),
      h("td", { class: "n wide-only" }, one.status === "ready" ? M.busy(number(one.running), number(one.max_running), one.waiting) : ""),
      h("td", { class: "n wide-only" }, one.kv_limit_bytes ? percent(one.kv_bytes / one.kv_limit_bytes) : "–"),
      h("td", { class: "n wide-only" }, number(one.generation_tokens_per_s)),
      h("td", { class: "n" }, unloadButton(one)),
    ),
  );
  return table([M.model, M.state, M.onNodes, [M.rows, "n wide-only"], [M.kv, "n wide-only"], [M.speed, "n wide-only"], [M.unload, "n hush"]], rows);
}

function stateOf(one) {
  const tone = { ready: "good", failed: "bad" }[one.status] ?? "warn";
  const word = one.status === "placed" ? (M.phases[one.phase] ?? M.statuses.placed) : (M.statuses[one.status] ?? one.status);
  const isLoading = one.status === "placed" && one.to_load_bytes > 0;
  return [
    h("span", { class: `pill ${tone}`, title: one.why || null }, word),
    isLoading && meter(one.loaded_bytes / one.to_load_bytes, M.loadedPart(bytes(one.loaded_bytes), bytes(one.to_load_bytes))),
  ];
}

const meter = (ratio, label) =>
  h("div", { class: "meter", role: "img", "aria-label": label, title: label }, h("i", { style: { width: `${Math.min(100, ratio * 100)}%` } }));

// A pinned model would be loaded again, so unloading it also unpins it.
async function unload(one) {
  if (one.pinned) await json("POST", "/unpin", { model: one.model });
  await json("DELETE", `/instance/${encodeURIComponent(one.instance)}`);
}

function unloadButton(one) {
  const isAsked = asksToUnload === one.instance;
  const press = () => {
    if (!isAsked) {
      asksToUnload = one.instance;
      draw();
      return;
    }
    asksToUnload = null;
    attempt(() => unload(one), M.gone(one.model));
  };
  return h("button", { class: isAsked ? "danger" : null, onclick: press, "aria-label": `${isAsked ? M.really : M.unload} ${one.model}` }, isAsked ? M.really : M.unload);
}

// --- on disk ----------------------------------------------------------------------------------------

/** Return the models on all disks, each once, with the nodes that have it. */
function modelsOnDisk() {
  const found = new Map();
  for (const card of live.state?.telemetry.cards ?? [])
    for (const model of card.models) {
      if (!found.has(model.model)) found.set(model.model, { ...model, nodes: [] });
      found.get(model.model).nodes.push(card.node);
    }
  return [...found.values()].sort((a, b) => a.model.localeCompare(b.model));
}

function diskTable(onDisk) {
  if (!onDisk.length) return h("p", { class: "dim" }, M.noneOnDisk);
  const rows = onDisk.flatMap((one) => [
    h(
      "tr", { "data-key": one.model },
      h("td", {}, h("strong", {}, one.model), h("div", { class: "dim" }, one.capabilities.join(", "))),
      h("td", { class: "n" }, bytes(one.size_bytes)),
      h("td", { class: "wide-only" }, one.quantization === "none" ? one.dtype : one.quantization),
      h("td", { class: "n wide-only" }, number(one.context_tokens)),
      h("td", {}, one.nodes.map((node) => h("span", { class: "chip" }, nameOf(node)))),
      h("td", { class: "n" }, h("button", { onclick: () => look(one.model), "aria-label": `${M.load} ${one.model}` }, M.load)),
    ),
    preview?.model === one.model && h("tr", { "data-key": `${one.model} plan`, class: "plan" }, h("td", { colspan: 6 }, plan(one.model))),
  ]);
  return table([M.model, [M.size, "n"], [M.quantization, "wide-only"], [M.context, "n wide-only"], M.nodes, [M.load, "n hush"]], rows.filter(Boolean));
}

/** Get a placement preview under these wishes; a later call replaces this one. */
async function look(model, wishes = { nodes: [], sharding: "", context: "" }) {
  problem = told = null;
  const asking = { model, wishes, found: preview?.model === model ? preview.found : null, refused: null, isAsking: true };
  preview = asking;
  draw();
  const query = new URLSearchParams({ model });
  for (const [name, value] of Object.entries(conditions(wishes)))
    for (const one of [value].flat()) query.append(name, one);
  let found = null;
  let refused = null;
  try {
    found = (await json("GET", `/instance/placement?${query}`)).plan;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    refused = error.message;
  }
  if (preview !== asking) return;
  preview = { model, wishes, found, refused, isAsking: false };
  draw();
}

const knownNodes = () => live.snapshot?.nodes ?? [];

/** Return the fields of a placement chosen by the user: a part on each chosen node, no other nodes. */
function conditions({ nodes, sharding, context }) {
  const others = knownNodes().map((node) => node.node).filter((node) => !nodes.includes(node));
  return {
    ...(nodes.length && { min_nodes: nodes.length, ...(others.length && { excluded_nodes: others }) }),
    ...(sharding && { sharding }),
    ...(context && { context_tokens: Number(context) }),
  };
}

function plan(model) {
  const { found, wishes, refused, isAsking } = preview;
  const put = (event) => {
    event.preventDefault();
    const pinned = event.currentTarget.elements.pinned.checked;
    preview = null;
    load({ model, pinned, ...conditions(wishes) });
  };
  const leave = () => {
    preview = null;
    draw();
  };
  return h(
    "form", { onsubmit: put },
    h("h3", {}, M.plan),
    refused ? h("p", { class: "bad", role: "alert" }, refused) : found ? outcome(found) : h("p", { class: "dim" }, T.loading),
    byHand(model, wishes),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "pinned" }), M.pin),
    h("div", { class: "row" },
      h("button", { class: "main", disabled: !found || isAsking }, M.doLoad),
      h("button", { type: "button", onclick: leave }, M.notNow)),
  );
}

/** Return a plan as elements: ranks and the arithmetic, or the models to evict. */
function outcome(found) {
  if (found.evicts) {
    const leaving = (live.snapshot?.instances ?? []).filter((one) => found.evicts.includes(one.instance)).map((one) => one.model);
    return h("p", {}, M.displaces(found.nodes.map(nameOf).join(", "), leaving.join(", ") || found.evicts.join(", ")));
  }
  const isSplit = found.ranks.length > 1;
  const nodes = found.ranks.map((rank) => rank.name).join(", ");
  return [
    h("p", {}, M.would(nodes, bytes(found.need_bytes), number(found.tokens_per_s)), " ", isSplit && `${M.splits[found.sharding]}. `, M.holds(number(found.context_tokens)), " ", found.fetch_bytes > 0 && M.copied(bytes(found.fetch_bytes))),
    h("details", { "data-key": "arithmetic" }, h("summary", {}, M.arithmetic), found.ranks.map((rank) =>
      h("p", { "data-key": String(rank.rank) }, rank.name, isSplit && `, ${M.layers(rank.first_layer + 1, rank.last_layer)}`, ": ", h("code", {}, rank.arithmetic)))),
  ];
}

function byHand(model, wishes) {
  const changed = (event) => {
    const { elements } = event.currentTarget.form;
    const nodes = [...elements].filter((one) => one.name === "node" && one.checked).map((one) => one.value);
    look(model, { nodes, sharding: elements.sharding.value, context: elements.context.value.trim() });
  };
  return h(
    "details", { class: "by-hand", "data-key": "by hand" },
    h("summary", {}, M.byHand),
    h("fieldset", {},
      h("legend", {}, M.nodesByHand),
      knownNodes().map((node) =>
        h("label", { class: "check", "data-key": node.node }, h("input", { type: "checkbox", name: "node", value: node.node, onchange: changed }), node.name))),
    h("div", { class: "row" },
      h("label", {}, M.split, " ",
        h("select", { name: "sharding", onchange: changed }, Object.entries({ "": M.anySplit, ...M.splits }).map(([value, word]) => h("option", { value }, word)))),
      h("label", {}, M.contextByHand, " ",
        h("input", { name: "context", type: "number", min: 1, step: 1, placeholder: M.anyContext, value: wishes.context, onchange: changed }))),
  );
}

/** Load a model; report if an existing instance already matches. */
async function load(body) {
  const before = live.snapshot?.instances ?? [];
  let answer = null;
  await attempt(async () => {
    answer = await json("POST", "/place_instance", body);
  }, M.asked(body.model));
  if (answer && before.some((one) => one.instance === answer.instance)) {
    told = M.there(body.model);
    draw();
  }
}

// --- pulling ----------------------------------------------------------------------------------------

function pullSection() {
  const begin = (event) => {
    event.preventDefault();
    const model = event.currentTarget.elements.model.value.trim();
    if (model) fetchModel(model);
  };
  const nodes = live.snapshot?.nodes ?? [];
  const others = (live.snapshot?.pulls ?? []).filter((one) => !["done", "failed"].includes(one.phase) && one.model !== pull?.line?.model);
  return h(
    "section", {},
    h("h2", {}, M.pull),
    h("form", { class: "row pull", onsubmit: begin },
      h("input", { name: "model", "aria-label": M.pullName, placeholder: M.pullName, autocomplete: "off", spellcheck: "false" }),
      nodes.length > 1 &&
        h("select", { "aria-label": M.pullTo, onchange: (event) => (pullTo = event.target.value) },
          nodes.map((node) => h("option", { value: node.node, selected: node.node === live.snapshot.node }, node.name))),
      h("button", { disabled: pull !== null }, M.doPull)),
    pull && h("div", { class: "pulling" }, progress(pull.line ?? { status: "waiting", model: pull.model }), h("button", { onclick: () => pull.stop.abort() }, M.stopPull)),
    others.map((one) => h("div", { class: "pulling" }, progress({ ...one, status: one.phase, completed: one.done_bytes, total: one.total_bytes }))),
  );
}

function progress(line) {
  const total = line.total ?? 0;
  const details = [M.pulling[line.status] ?? line.status];
  if (total) details.push(M.loadedPart(bytes(line.completed), bytes(total)));
  if (line.bytes_per_s > 0) details.push(`${bytes(line.bytes_per_s)}/s`);
  if (line.eta_s) details.push(M.left(span(line.eta_s)));
  return h("div", {}, h("strong", {}, line.model), " ", h("span", { class: "dim" }, nameOf(line.node)), meter(total ? line.completed / total : 0, details[0]), h("small", {}, details.join(" · ")));
}

async function fetchModel(model) {
  pull = { model, line: null, stop: new AbortController() };
  const { signal } = pull.stop;
  await attempt(async () => {
    try {
      const asked = { model, stream: true, ...(pullTo && { to: pullTo }) };
      const answer = await ask("POST", "/models/pull", { body: asked, signal });
      for await (const text of lines(answer)) {
        const line = JSON.parse(text);
        if (line.error) throw new ApiError(0, messageOf(line.error));
        pull.line = line;
        draw();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      pull = null;
    }
    await askState();
  }, signal.aborted ? null : M.pulled(model));
  if (signal.aborted) told = null;
  draw();
}
