// Models: loaded instances, models on the nodes' disks, and pulls.

import { ApiError, ask, json, lines, messageOf } from "./api.js";
import { bytes, h, number, percent, show, span, table } from "./dom.js";
import { askState, live, nameOf } from "./live.js";
import { T } from "./texts.js";

const M = T.models;

let root = null;
let preview = null;
let asksToUnload = null;
let notice = null;
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
    notice = problem = preview = asksToUnload = null;
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
      notice && h("p", { class: "good", role: "status" }, notice),
      h("section", {}, h("h2", {}, M.loaded), snapshot ? loadedTable(copies) : h("p", { class: "dim" }, T.loading)),
      h("section", {}, h("h2", {}, M.onDisk), live.state ? diskTable(onDisk) : h("p", { class: "dim" }, T.loading)),
      pullSection()),
  );
}

/** Run an action; show `done` or the error. */
async function attempt(act, done) {
  problem = notice = null;
  try {
    await act();
    notice = done;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem = error.message;
  }
  draw();
}

// --- loaded instances -------------------------------------------------------------------------------

function loadedTable(copies) {
  if (!copies.length) return h("p", { class: "dim" }, M.noneLoaded);
  const rows = copies.map((instance) =>
    h(
      "tr", { "data-key": instance.instance },
      h("td", {}, h("strong", {}, instance.model), instance.pinned && h("span", { class: "pill quiet" }, M.pinned)),
      h("td", {}, stateOf(instance)),
      h("td", {}, instance.ranks.map((rank) => h("span", { class: "chip", title: bytes(rank.promised_bytes) }, nameOf(rank.node)))),
      h("td", { class: "n wide-only" }, instance.status === "ready" ? M.busy(number(instance.running), number(instance.max_running), instance.waiting) : ""),
      h("td", { class: "n wide-only" }, instance.kv_limit_bytes ? percent(instance.kv_bytes / instance.kv_limit_bytes) : "–"),
      h("td", { class: "n wide-only" }, number(instance.generation_tokens_per_s)),
      h("td", { class: "n" }, unloadButton(instance)),
    ),
  );
  return table([M.model, M.state, M.onNodes, [M.rows, "n wide-only"], [M.kv, "n wide-only"], [M.speed, "n wide-only"], [M.unload, "n hush"]], rows);
}

function stateOf(instance) {
  const tone = { ready: "good", failed: "bad" }[instance.status] ?? "warn";
  const word = instance.status === "placed" ? (M.phases[instance.phase] ?? M.statuses.placed) : (M.statuses[instance.status] ?? instance.status);
  const isLoading = instance.status === "placed" && instance.to_load_bytes > 0;
  return [
    h("span", { class: `pill ${tone}`, title: instance.why || null }, word),
    isLoading && meter(instance.loaded_bytes / instance.to_load_bytes, M.loadedPart(bytes(instance.loaded_bytes), bytes(instance.to_load_bytes))),
  ];
}

const meter = (ratio, label) =>
  h("div", { class: "meter", role: "img", "aria-label": label, title: label }, h("i", { style: { width: `${Math.min(100, ratio * 100)}%` } }));

// A pinned model would be loaded again, so unloading it also unpins it.
async function unload(instance) {
  if (instance.pinned) await json("POST", "/unpin", { model: instance.model });
  await json("DELETE", `/instance/${encodeURIComponent(instance.instance)}`);
}

function unloadButton(instance) {
  const isAsked = asksToUnload === instance.instance;
  const press = () => {
    if (!isAsked) {
      asksToUnload = instance.instance;
      draw();
      return;
    }
    asksToUnload = null;
    attempt(() => unload(instance), M.gone(instance.model));
  };
  return h("button", { class: isAsked ? "danger" : null, onclick: press, "aria-label": `${isAsked ? M.really : M.unload} ${instance.model}` }, isAsked ? M.really : M.unload);
}

// --- on disk ----------------------------------------------------------------------------------------

/** Return the models on all disks, each once, with the nodes that have it. */
function modelsOnDisk() {
  const byName = new Map();
  for (const card of live.state?.telemetry.cards ?? [])
    for (const model of card.models) {
      if (!byName.has(model.model)) byName.set(model.model, { ...model, nodes: [] });
      byName.get(model.model).nodes.push(card.node);
    }
  return [...byName.values()].sort((a, b) => a.model.localeCompare(b.model));
}

function diskTable(onDisk) {
  if (!onDisk.length) return h("p", { class: "dim" }, M.noneOnDisk);
  const rows = onDisk.flatMap((model) => [
    h(
      "tr", { "data-key": model.model },
      h("td", {}, h("strong", {}, model.model), h("div", { class: "dim" }, model.capabilities.join(", "))),
      h("td", { class: "n" }, bytes(model.size_bytes)),
      h("td", { class: "wide-only" }, model.quantization === "none" ? model.dtype : model.quantization),
      h("td", { class: "n wide-only" }, number(model.context_tokens)),
      h("td", {}, model.nodes.map((node) => h("span", { class: "chip" }, nameOf(node)))),
      h("td", { class: "n" }, h("button", { onclick: () => look(model.model), "aria-label": `${M.load} ${model.model}` }, M.load)),
    ),
    preview?.model === model.model && h("tr", { "data-key": `${model.model} plan`, class: "plan" }, h("td", { colspan: 6 }, plan(model.model))),
  ]);
  return table([M.model, [M.size, "n"], [M.quantization, "wide-only"], [M.context, "n wide-only"], M.nodes, [M.load, "n hush"]], rows.filter(Boolean));
}

/** Get a placement preview under these wishes; a later call replaces this one. */
async function look(model, wishes = { nodes: [], sharding: "", context: "" }) {
  problem = notice = null;
  const asking = { model, wishes, answer: preview?.model === model ? preview.answer : null, refused: null, isAsking: true };
  preview = asking;
  draw();
  const query = new URLSearchParams({ model });
  for (const [name, value] of Object.entries(conditions(wishes)))
    for (const item of [value].flat()) query.append(name, item);
  let answer = null;
  let refused = null;
  try {
    answer = (await json("GET", `/instance/placement?${query}`)).plan;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    refused = error.message;
  }
  if (preview !== asking) return;
  preview = { model, wishes, answer, refused, isAsking: false };
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
  const { answer, wishes, refused, isAsking } = preview;
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
    refused ? h("p", { class: "bad", role: "alert" }, refused) : answer ? outcome(answer) : h("p", { class: "dim" }, T.loading),
    byHand(model, wishes),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "pinned" }), M.pin),
    h("div", { class: "row" },
      h("button", { class: "main", disabled: !answer || isAsking }, M.doLoad),
      h("button", { type: "button", onclick: leave }, M.notNow)),
  );
}

/** Return a plan as elements: ranks and the arithmetic, or the models to evict. */
function outcome(answer) {
  if (answer.evicts) {
    const leaving = (live.snapshot?.instances ?? []).filter((instance) => answer.evicts.includes(instance.instance)).map((instance) => instance.model);
    return h("p", {}, M.displaces(answer.nodes.map(nameOf).join(", "), leaving.join(", ") || answer.evicts.join(", ")));
  }
  const isSplit = answer.ranks.length > 1;
  const nodes = answer.ranks.map((rank) => rank.name).join(", ");
  return [
    h("p", {}, M.would(nodes, bytes(answer.need_bytes), number(answer.tokens_per_s)), " ", isSplit && `${M.splits[answer.sharding]}. `, M.holds(number(answer.context_tokens)), " ", answer.fetch_bytes > 0 && M.copied(bytes(answer.fetch_bytes))),
    h("details", { "data-key": "arithmetic" }, h("summary", {}, M.arithmetic), answer.ranks.map((rank) =>
      h("p", { "data-key": String(rank.rank) }, rank.name, isSplit && `, ${M.layers(rank.first_layer + 1, rank.last_layer)}`, ": ", h("code", {}, rank.arithmetic)))),
  ];
}

function byHand(model, wishes) {
  const changed = (event) => {
    const { elements } = event.currentTarget.form;
    const nodes = [...elements].filter((input) => input.name === "node" && input.checked).map((input) => input.value);
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
  if (answer && before.some((instance) => instance.instance === answer.instance)) {
    notice = M.there(body.model);
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
  const others = (live.snapshot?.pulls ?? []).filter((other) => !["done", "failed"].includes(other.phase) && other.model !== pull?.line?.model);
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
    others.map((other) => h("div", { class: "pulling" }, progress({ ...other, status: other.phase, completed: other.done_bytes, total: other.total_bytes }))),
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
      const request = { model, stream: true, ...(pullTo && { to: pullTo }) };
      const answer = await ask("POST", "/models/pull", { body: request, signal });
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
  if (signal.aborted) notice = null;
  draw();
}
