// Plots of the last five minutes, drawn here from the stream's snapshots.

import { bytes, h, number, percent, s, show, span } from "./dom.js";
import { SPAN_S, live, nameOf } from "./live.js";
import { T } from "./texts.js";

const W = T.watch;
const VIEW = { width: 420, height: 120, top: 8, bottom: 18, right: 46 };

let root = null;
let pointed = null;

export const watch = {
  open(main) {
    root = main;
    draw();
  },
  update(what) {
    if (what === "snapshot") draw();
  },
  close() {
    root = null;
    pointed = null;
  },
};

/** Return the plots: a name, how values are told, and lines, each a name and what a point has. */
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
  show(
    root,
    h("header", { class: "head" }, h("h1", {}, W.title), h("p", { class: "dim" }, W.summary(span(SPAN_S)))),
    h("div", { class: "body" }, h("section", { class: "plots" }, plots().map(([name, told, lines]) => plot(name, told, lines)))),
  );
}

function plot(name, told, lines) {
  const [title, note] = W.plots[name];
  const { past } = live;
  const endS = past.at(-1)?.at_s ?? 0;
  const spanS = Math.min(SPAN_S, Math.max(60, Math.ceil((endS - (past[0]?.at_s ?? 0)) / 60) * 60));
  const values = lines.map(([, of]) => past.map(of));
  const known = values.flat().filter((value) => value !== null);
  const most = known.length ? Math.max(...known) : 0;
  const top = niceAbove(most, told === percent ? 1 : told === bytes ? 1e6 : told === span ? 0.001 : 1);
  const inner = { width: VIEW.width - VIEW.right, height: VIEW.height - VIEW.top - VIEW.bottom };
  const x = (atS) => inner.width * (1 - (endS - atS) / spanS);
  const y = (value) => VIEW.top + inner.height * (1 - value / top);
  const at = pointed === null ? past.length - 1 : nearest(past, endS - (1 - pointed) * spanS);
  const last = (row) => (pointed === null ? row.findLast((value) => value !== null) : row[at]) ?? null;
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
        h("span", { class: `value line-${row % 6}` }, line && h("small", {}, line), h("b", {}, known.length ? told(last(values[row])) : W.nothing))))),
    s("svg", { viewBox: `0 0 ${VIEW.width} ${VIEW.height}`, role: "img", onpointermove: move, onpointerleave: left,
               "aria-label": W.described(title, lines.map((_, row) => told(last(values[row]))).join(", "), told(most)) },
      [0, 0.5, 1].map((part) => [
        s("line", { class: "grid", x1: 0, x2: inner.width, y1: y(top * part), y2: y(top * part) }),
        s("text", { class: "tick", x: inner.width + 6, y: y(top * part) + 3.5 }, told(top * part)),
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

/** Return values that stand alone as dots: a line needs two. */
function dots(past, row, x, y, number) {
  const lone = (at) => row[at] !== null && (row[at - 1] ?? null) === null && (row[at + 1] ?? null) === null;
  return past.map((point, at) => lone(at) && s("circle", { class: `dot line-${number % 6}`, cx: x(point.at_s), cy: y(row[at]), r: 2 }));
}

function nearest(past, atS) {
  let best = 0;
  past.forEach((point, at) => {
    if (Math.abs(point.at_s - atS) < Math.abs(past[best].at_s - atS)) best = at;
  });
  return best;
}

function pathOf(past, row, x, y) {
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

function areaOf(past, row, x, y, base) {
  return runsOf(row).map(([first, last]) => {
    const points = past.slice(first, last + 1).map((point, at) => `L${x(point.at_s).toFixed(1)} ${y(row[first + at]).toFixed(1)}`);
    return `M${x(past[first].at_s).toFixed(1)} ${base}${points.join("")}L${x(past[last].at_s).toFixed(1)} ${base}Z`;
  }).join("");
}

/** Return where values stand side by side: first and last of each run. */
function runsOf(row) {
  const runs = [];
  row.forEach((value, at) => {
    if (value === null) return;
    if (runs.length && runs.at(-1)[1] === at - 1) runs.at(-1)[1] = at;
    else runs.push([at, at]);
  });
  return runs;
}

/** Return a round number at or above `value`, `least` at least. */
function niceAbove(value, least) {
  const wanted = Math.max(value, least);
  const size = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 2.5, 5, 10].map((step) => step * size).find((step) => step >= wanted * 0.999);
}
