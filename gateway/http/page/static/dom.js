// Elements, numbers, curves, flame graphs, lanes and texts. A view builds new elements each time. They
// are merged into the shown elements, so that focus, selection and typed text stay.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown", "onpointermove", "onpointerleave"];
const KEPT = new Set(["open", "style", "value", "checked"]);

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "style") for (const [key, word] of Object.entries(value)) element.style.setProperty(key, word);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return an HTML element: `on...` are handlers, `style` is an object; null attributes are left out. */
export const h = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);

/** Return an SVG element. */
export const s = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

/** Replace the children of `parent` by `fresh`, keeping existing elements that match. */
export function show(parent, ...fresh) {
  const wanted = fresh.flat(4).filter((child) => child !== null && child !== undefined && child !== false);
  mergeChildren(parent, wanted.map((child) => (child instanceof Node ? child : document.createTextNode(child))));
}

const keyOf = (node) => (node.dataset ? node.dataset.key : undefined);
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function mergeChildren(parent, wanted) {
  let at = parent.firstChild;
  for (const fresh of wanted) {
    let match = at;
    if (match && !isAlike(match, fresh) && keyOf(fresh) !== undefined)
      while (match && !isAlike(match, fresh)) match = match.nextSibling;
    if (match && isAlike(match, fresh)) {
      if (match !== at) parent.insertBefore(match, at);
      else at = at.nextSibling;
      merge(match, fresh);
    } else parent.insertBefore(fresh, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function merge(old, fresh) {
  if (old === fresh) return;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!KEPT.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  mergeChildren(old, [...fresh.childNodes]);
}

/** Return an icon of 20 units from a path, drawn in the text's colour. */
export function icon(path, className = "icon") {
  return s("svg", { viewBox: "0 0 20 20", class: className, "aria-hidden": "true" }, s("path", { d: path }));
}

/** Return a table; a column is a title, or a title and a class. */
export function table(columns, rows) {
  const heads = columns.map((column) => {
    const [title, kind] = Array.isArray(column) ? column : [column, null];
    return h("th", { scope: "col", class: kind }, title);
  });
  return h("div", { class: "scroll", tabindex: "0", role: "group" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}

// --- numbers and times as text ------------------------------------------------------------------

const round = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

/** Return a number, with fewer decimals the larger it is. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return round(value, size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
}

/** Return bytes in decimal units. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${round(value, value >= 100 || unit === 0 ? 0 : 1)} ${units[unit]}`;
}

/** Return a span of time. */
export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${round(seconds * 1e6, 0)} µs`;
  if (seconds < 1) return `${round(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${round(seconds, seconds < 10 ? 1 : 0)} s`;
  const [whole, part, names] = seconds < 3600 ? [60, 1, ["min", "s"]] : [3600, 60, ["h", "min"]];
  const rest = Math.floor((seconds % whole) / part);
  return `${Math.floor(seconds / whole)} ${names[0]}${rest ? ` ${String(rest).padStart(2, "0")} ${names[1]}` : ""}`;
}

/** Return a ratio in percent. */
export const percent = (ratio) => (ratio === null || ratio === undefined ? "–" : `${round(ratio * 100, 0)} %`);

/** Return a time of day. */
export const clock = (atS) =>
  new Date(atS * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Return a text, cut after `most` characters. */
export const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Return the parts of a text; parts in backquotes become `code` elements. */
export const words = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

// --- curves --------------------------------------------------------------------------------------

/** Return the index of the point nearest to a time. */
export function nearest(past, atS) {
  let best = 0;
  past.forEach((point, at) => {
    if (Math.abs(point.at_s - atS) < Math.abs(past[best].at_s - atS)) best = at;
  });
  return best;
}

/** Return the path of a curve, with gaps at unknown values. */
export function pathOf(past, row, x, y) {
  let path = "";
  let isOn = false;
  past.forEach((point, at) => {
    if (row[at] === null) isOn = false;
    else {
      path += `${isOn ? "L" : "M"}${x(point.at_s).toFixed(1)} ${y(row[at]).toFixed(1)}`;
      isOn = true;
    }
  });
  return path;
}

/** Return the path of the area between a curve and `base`. */
export function areaOf(past, row, x, y, base) {
  return runsOf(row).map(([first, last]) => {
    const points = past.slice(first, last + 1).map((point, at) => `L${x(point.at_s).toFixed(1)} ${y(row[first + at]).toFixed(1)}`);
    return `M${x(past[first].at_s).toFixed(1)} ${base}${points.join("")}L${x(past[last].at_s).toFixed(1)} ${base}Z`;
  }).join("");
}

/** Return the runs of consecutive known values, each as [first, last]. */
function runsOf(row) {
  const runs = [];
  row.forEach((value, at) => {
    if (value === null) return;
    if (runs.length && runs.at(-1)[1] === at - 1) runs.at(-1)[1] = at;
    else runs.push([at, at]);
  });
  return runs;
}

/** Return dots for single values between gaps, because a line needs two points. */
export function dots(past, row, x, y, number) {
  const lone = (at) => row[at] !== null && (row[at - 1] ?? null) === null && (row[at + 1] ?? null) === null;
  return past.map((point, at) => lone(at) && s("circle", { class: `dot line-${number % 6}`, cx: x(point.at_s), cy: y(row[at]), r: 2 }));
}

/** Return a round number that is at least `value` and `least`. */
export function niceAbove(value, least) {
  const wanted = Math.max(value, least);
  const size = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 2.5, 5, 10].map((step) => step * size).find((step) => step >= wanted * 0.999);
}

// --- flame graphs ---------------------------------------------------------------------------------

/** Return a sampled profile as a tree of calls; each call has its seconds with and without callees. */
export function treeOf({ profiles, shared }, name) {
  const all = { name, file: "", seconds: 0, own: 0, below: new Map() };
  for (const { name: thread, samples, weights } of profiles)
    samples.forEach((stack, at) => {
      const calls = stack.map((index) => shared.frames[index]);
      if (calls[0]?.name.startsWith("thread (")) calls.shift(); // it repeats the thread's name
      const frames = [{ name: thread.match(/"(.*)"/)?.[1] || thread, file: "" }, ...calls];
      let node = all;
      node.seconds += weights[at];
      for (const frame of frames) {
        const key = `${frame.name} ${frame.file}`;
        if (!node.below.has(key)) node.below.set(key, { name: frame.name, file: frame.file, seconds: 0, own: 0, below: new Map() });
        node = node.below.get(key);
        node.seconds += weights[at];
      }
      node.own += weights[at];
    });
  return all;
}

/** Return the owner of a file's code: shoal, a library, or Python. */
export const ownerOf = (file) => (!file ? "thread" : file.includes("site-packages") ? "library" : /\/python3|^<frozen/.test(file) ? "python" : "shoal");

/** Return the calls of a tree from `top` down, each as `{node, share, from, depth}`: width and start as
 * shares of the whole width, and row. Calls narrower than `least` are left out. */
export function laidOut(top, least = 0.002) {
  const rows = [];
  const lay = (node, from, depth) => {
    const share = node.seconds / top.seconds;
    if (share < least) return;
    rows.push({ node, share, from, depth });
    let at = from;
    for (const below of [...node.below.values()].sort((a, b) => b.seconds - a.seconds)) {
      lay(below, at, depth + 1);
      at += below.seconds / top.seconds;
    }
  };
  lay(top, 0, 0);
  return rows;
}

/** Return the functions by their own time without callees, longest first: `{node, seconds}`. */
export function hottestOf(tree) {
  const own = new Map();
  const walk = (node) => {
    const key = `${node.name} ${node.file}`;
    if (node.own) own.set(key, { node, seconds: (own.get(key)?.seconds ?? 0) + node.own });
    node.below.forEach(walk);
  };
  walk(tree);
  return [...own.values()].sort((a, b) => b.seconds - a.seconds);
}

// --- lanes: what each rank of a group did ------------------------------------------------------------

/** The phases of a rank's engine, in the order in which sums are drawn. */
export const PHASES = ["queued", "idle", "host", "wait", "receive", "compute", "send"];
const TINY_S = 1e-6;

/** Return the time until which a rank's parts are recorded one by one. */
const toldUntil = ({ parts }) => (parts.at(-1)?.ended_s ?? -Infinity) + TINY_S;

/** Return the later turns of a rank, which are recorded only as sums. */
export const summedTurns = (rank) => rank.turns.filter((turn) => turn.ended_s > toldUntil(rank));

/** Return the steps that at least one of these ranks has recorded part by part. */
export function stepsOf(ranks) {
  const whole = (rank) => rank.turns.filter((turn) => turn.steps === 1 && turn.name !== "other" && turn.ended_s <= toldUntil(rank));
  return [...new Set(ranks.flatMap(whole).map((turn) => turn.step))].sort((a, b) => a - b);
}

/** Return the start and end of a step: from its first message or turn to the last end. */
export const stretchOf = (turns, links) => [
  Math.min(...turns.map((turn) => turn.began_s), ...links.map((link) => link.sent_s)),
  Math.max(...turns.map((turn) => turn.ended_s), ...links.map((link) => link.had_s)),
];

/** Merge consecutive turns of the same name. */
export function mergedTurns(turns) {
  const merged = [];
  for (const { name, began_s, ended_s } of turns)
    if (merged.at(-1)?.name === name) merged.at(-1).ended_s = ended_s;
    else merged.push({ name, began_s, ended_s });
  return merged;
}

/** Return a turn's sums as parts side by side, because their order is unknown. */
export function sumsOf(turn) {
  let at = turn.began_s;
  return PHASES.filter((name) => turn.seconds[name]).map((name) => ({ name, isSum: true, began_s: at, ended_s: (at += turn.seconds[name]) }));
}

// --- texts of models and lines of logs, as elements without markup: a model's output always stays text ---------------

const LEVELS = { warning: "warn", error: "bad", critical: "bad" };
const SHOWN_APART = new Set(["time", "level", "message", "node", "process"]);
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^\s*(?:[-*+]|\d{1,3}[.)])\s+/;

/** Return the elements of a text, which may be incomplete. */
export function prose(text) {
  const elements = [];
  const rows = text.split("\n");
  for (let at = 0; at < rows.length; ) {
    const fence = FENCE.exec(rows[at]);
    if (fence) {
      const code = [];
      for (at += 1; at < rows.length && !rows[at].trimStart().startsWith(fence[1]); at += 1) code.push(rows[at]);
      at += 1;
      elements.push(h("pre", { tabindex: "0" }, h("code", { "data-language": fence[2] || null }, code.join("\n"))));
    } else if (!rows[at].trim()) at += 1;
    else if (ITEM.test(rows[at])) {
      const isNumbered = /^\s*\d/.test(rows[at]);
      const items = [];
      for (; at < rows.length && (ITEM.test(rows[at]) || (rows[at].startsWith("  ") && rows[at].trim())); at += 1)
        if (ITEM.test(rows[at])) items.push(rows[at].replace(ITEM, ""));
        else items[items.length - 1] += ` ${rows[at].trim()}`;
      elements.push(h(isNumbered ? "ol" : "ul", {}, items.map((item) => h("li", {}, inline(item)))));
    } else if (/^#{1,6} /.test(rows[at])) {
      elements.push(h("p", { class: "heading" }, inline(rows[at].replace(/^#+ /, ""))));
      at += 1;
    } else {
      const lines = [];
      for (; at < rows.length && rows[at].trim() && !FENCE.test(rows[at]) && !ITEM.test(rows[at]); at += 1)
        lines.push(rows[at]);
      elements.push(h("p", {}, lines.flatMap((line, index) => (index ? [h("br"), ...inline(line)] : inline(line)))));
    }
  }
  return elements;
}

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}

/** Return a line of a log. Our lines are JSON; a library's line is shown as it is. */
export function lineOf(line) {
  let entry = null;
  try {
    entry = JSON.parse(line);
  } catch {
    // a library's line
  }
  if (!entry?.message) return h("p", {}, line);
  const more = Object.entries(entry).filter(([key]) => !SHOWN_APART.has(key)).map(([key, value]) => ` ${key}=${value}`);
  return h("p", { class: LEVELS[entry.level] ?? "" }, h("time", {}, clock(Date.parse(entry.time) / 1000)), ` ${entry.level} `, h("b", {}, entry.message), more.join(""));
}
