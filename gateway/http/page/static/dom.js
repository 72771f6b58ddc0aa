// Elements and numbers. A view is made anew as elements each time and then merged into what is
// shown, so that focus, selection and what people typed stay.

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

/** Return an HTML element: `on...` are handlers, `style` is a table, what is null is left out. */
export const h = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);

/** Return an SVG element. */
export const s = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

/** Make the children of `parent` what `fresh` says, keeping the elements that are there. */
export function show(parent, ...fresh) {
  const wanted = fresh.flat(4).filter((one) => one !== null && one !== undefined && one !== false);
  mergeChildren(parent, wanted.map((one) => (one instanceof Node ? one : document.createTextNode(one))));
}

const keyOf = (node) => (node.dataset ? node.dataset.key : undefined);
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function mergeChildren(parent, wanted) {
  let at = parent.firstChild;
  for (const fresh of wanted) {
    let found = at;
    if (found && !isAlike(found, fresh) && keyOf(fresh) !== undefined)
      while (found && !isAlike(found, fresh)) found = found.nextSibling;
    if (found && isAlike(found, fresh)) {
      if (found !== at) parent.insertBefore(found, at);
      else at = at.nextSibling;
      merge(found, fresh);
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

/** Return an icon of the page's own, of 20 units, drawn with the text's colour. */
export function icon(path, className = "icon") {
  return s("svg", { viewBox: "0 0 20 20", class: className, "aria-hidden": "true" }, s("path", { d: path }));
}

// --- numbers, as people read them ---------------------------------------------------------------

const round = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

/** Return a number with as many digits as it deserves. */
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

/** Return words in which `code` is set as code. */
export const words = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
