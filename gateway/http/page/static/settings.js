// The settings of this node: values in force with their sources, values that still run until a restart,
// and differences between nodes. Changes are written to this node's shoal.toml, or to that of every
// node.

import { ApiError, json } from "./api.js";
import { h, show, words } from "./dom.js";
import { live } from "./live.js";
import { T } from "./texts.js";

const S = T.settings;
const LOOK_MS = 5000;

let root = null;
let timer = null;
let answer = null;
let problem = null;
let notice = null;
let wanted = "";
let changedOnly = false;
let differingOnly = false;
let opened = null;
let missing = [];
let refused = null;

export const settings = {
  open(main) {
    root = main;
    draw();
    look();
  },
  close() {
    clearTimeout(timer);
    root = opened = problem = notice = refused = null;
    missing = [];
  },
};

/** Return whether there are other nodes, whose settings are then requested, too. */
const isOfMany = () => (live.snapshot?.nodes.length ?? 1) > 1;

async function look() {
  clearTimeout(timer);
  const mine = root;
  try {
    const now = await json("GET", isOfMany() ? "/settings?nodes=all" : "/settings");
    if (root !== mine || root === null) return;
    answer = now;
    problem = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status !== 0) problem = error.message;
  }
  if (root !== mine || root === null) return;
  draw();
  timer = setTimeout(look, LOOK_MS);
}

function draw() {
  if (root === null) return;
  show(
    root,
    h("header", { class: "head" }, h("h1", {}, S.title), answer && h("p", { class: "dim" }, summary())),
    h("div", { class: "body" },
      problem && h("p", { class: "bad", role: "alert" }, problem),
      answer?.trouble && h("p", { class: "bad", role: "alert" }, S.trouble(answer.trouble)),
      h("p", { class: "good", role: "status", hidden: notice === null }, notice ?? ""),
      h("ul", { class: "bad plain", role: "alert", hidden: missing.length === 0 }, missing.map((node) => h("li", { "data-key": node.node }, S.notOn(node.name, node.why)))),
      untold().map((node) => h("p", { class: "dim", "data-key": `untold ${node.node}` }, S.untold(node.name, node.why))),
      answer ? [h("p", { class: "dim" }, words(S.file(answer.file))), tools(), groups()] : h("p", { class: "dim" }, T.loading)),
  );
}

const isChanged = (row) => row.source !== "default";

const isElsewhere = (row) => (row.elsewhere ?? []).length > 0;

/** Return the nodes without an answer, except the nodes that are already listed as not changed. */
const untold = () => (answer?.nodes ?? []).filter((node) => node.why && !missing.some((other) => other.node === node.node));

const summary = () => {
  const count = (is) => answer.settings.filter(is).length;
  return S.summary(answer.name, count(isChanged), count((row) => row.differs), count(isElsewhere));
};

function tools() {
  const typed = (event) => {
    wanted = event.target.value.trim().toLowerCase();
    draw();
  };
  const turned = (event) => {
    changedOnly = event.target.checked;
    draw();
  };
  const turnedToDiffering = (event) => {
    differingOnly = event.target.checked;
    draw();
  };
  return h(
    "div", { class: "row tools" },
    h("input", { type: "search", id: "find", value: wanted, placeholder: S.find, "aria-label": S.find, oninput: typed }),
    h("label", { class: "check" }, h("input", { type: "checkbox", onchange: turned, checked: changedOnly }), S.changedOnly),
    answer.nodes && h("label", { class: "check" }, h("input", { type: "checkbox", onchange: turnedToDiffering, checked: differingOnly }), S.differingOnly),
  );
}

/** Return the settings that match the search, under the headings of their tables. */
function groups() {
  const isWanted = (row) =>
    row.key === opened ||
    ((!changedOnly || isChanged(row)) && (!differingOnly || !answer.nodes || isElsewhere(row)) && `${row.key} ${row.meaning}`.toLowerCase().includes(wanted));
  const rows = answer.settings.filter(isWanted);
  if (!rows.length) return h("p", { class: "dim" }, S.noneFound);
  const tableOf = ({ key }) => (key.includes(".") ? key.split(".")[0] : "");
  return [...new Set(rows.map(tableOf))].map((table) =>
    h("section", { "data-key": `table ${table}` },
      h("h2", {}, S.groups[table] ?? table),
      h("ul", { class: "settings" }, rows.filter((row) => tableOf(row) === table).map(setting))));
}

function setting(row) {
  const isOpen = opened === row.key;
  const turn = () => {
    opened = isOpen ? null : row.key;
    refused = notice = null;
    draw();
    root.querySelector(opened ? ".settings form [name=value]" : `[data-key="${row.key}"] button`)?.focus();
  };
  return h(
    "li", { class: isOpen ? "setting open" : "setting", "data-key": row.key },
    h("div", { class: "what" },
      h("h3", {}, h("code", {}, row.key)),
      h("p", { class: "dim" }, words(row.meaning))),
    h("div", { class: "now" },
      h("span", { class: "value" }, plain(row.value)),
      h("span", { class: isChanged(row) ? "pill" : "pill quiet" }, isChanged(row) ? S.origin(row.source) : S.standard),
      row.differs && h("span", { class: "pill warn" }, words(S.differs(plain(row.running)))),
      (row.elsewhere ?? []).map((node) => h("span", { class: "pill warn", "data-key": node.node }, S.onNode(node.name, plain(node.value)))),
      !row.not_over_http && h("button", { onclick: turn, "aria-expanded": String(isOpen), "aria-label": `${isOpen ? S.notNow : S.change} ${row.key}` }, isOpen ? S.notNow : S.change)),
    row.not_over_http && h("p", { class: "dim alone" }, words(S.hereAlone(row.key, row.not_over_http))),
    isOpen && editor(row),
  );
}

function editor(row) {
  const isAloof = isChanged(row) && !row.source.startsWith("file ");
  const sent = (event) => {
    event.preventDefault();
    const value = valueOf(row, event.target.elements.value);
    if (value === undefined) {
      refused = S.noNumber(row.key);
      draw();
    } else change({ set: { [row.key]: value } }, S.saved, ofAll(event.target));
  };
  const given = (event) => change({ unset: [row.key] }, S.unsaved, ofAll(event.target.form));
  return h(
    "form", { onsubmit: sent, "data-key": `edit ${row.key}` },
    field(row),
    h("p", { class: "dim", id: "about-value" },
      row.kind === "words" && `${S.words} `, S.standardIs(plain(row.default)), " ", row.takes === "at once" ? S.atOnce : S.atRestart,
      isAloof && ` ${S.overruled(row.source)}`),
    h("p", { class: "bad", role: "alert", hidden: refused === null }, refused ?? ""),
    answer.nodes && h("label", { class: "check" }, h("input", { type: "checkbox", name: "all" }), S.onAll),
    h("div", { class: "row" },
      h("button", { class: "main" }, S.save),
      (row.source.startsWith("file ") || isElsewhere(row)) && h("button", { type: "button", onclick: given }, S.reset)),
  );
}

/** Return the input element for a setting's kind of value. */
function field(row) {
  const is = { name: "value", "aria-label": row.key, "aria-describedby": "about-value" };
  if (row.kind === "truth" || row.kind === "choice") {
    const choices = row.kind === "truth" ? ["true", "false"] : row.choices;
    return h("select", is, choices.map((choice) => h("option", { value: choice, selected: choice === String(row.value) }, row.kind === "truth" ? S.truth[choice] : choice || S.none)));
  }
  if (row.kind === "words") return h("textarea", { ...is, rows: 3, spellcheck: "false" }, row.value.join("\n"));
  const number = row.kind === "text" ? {} : { inputmode: "decimal" };
  return h("input", { ...is, ...number, value: String(row.value), autocomplete: "off", spellcheck: "false" });
}

/** Return the entered value for JSON; undefined for an invalid number. */
function valueOf(row, input) {
  const text = input.value.trim();
  if (row.kind === "truth") return text === "true";
  if (row.kind === "words") return text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (row.kind !== "whole" && row.kind !== "number") return text;
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
}

const ofAll = (form) => form.elements.all?.checked ?? false;

/** Send a change, for this node or for all; show the result. */
async function change(body, done, isForAll) {
  refused = notice = null;
  missing = [];
  const key = opened;
  try {
    answer = await json("PUT", isForAll ? "/settings?nodes=all" : "/settings", body);
    const others = (answer.nodes ?? []).filter((node) => !node.why);
    missing = isForAll ? answer.nodes.filter((node) => node.why) : [];
    notice = done(key, isForAll ? [answer.name, ...others.map((node) => node.name)].join(", ") : "");
    opened = null;
    if (!isForAll && isOfMany()) look();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    refused = error.message;
  }
  draw();
  if (opened === null) root?.querySelector(`[data-key="${key}"] button`)?.focus();
}

/** Return a value as text for people. */
function plain(value) {
  if (Array.isArray(value)) return value.join(", ") || S.none;
  return typeof value === "boolean" ? S.truth[value] : value === "" ? S.empty : String(value);
}
