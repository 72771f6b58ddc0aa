// Text of a model as elements: paragraphs, lists, headings, code. It makes elements and no markup,
// so that whatever a model writes stays text.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^\s*(?:[-*+]|\d{1,3}[.)])\s+/;

/** Return the elements of a text, which may be cut anywhere. */
export function prose(text) {
  const found = [];
  const rows = text.split("\n");
  for (let at = 0; at < rows.length; ) {
    const fence = FENCE.exec(rows[at]);
    if (fence) {
      const code = [];
      for (at += 1; at < rows.length && !rows[at].trimStart().startsWith(fence[1]); at += 1) code.push(rows[at]);
      at += 1;
      found.push(h("pre", { tabindex: "0" }, h("code", { "data-language": fence[2] || null }, code.join("\n"))));
    } else if (!rows[at].trim()) at += 1;
    else if (ITEM.test(rows[at])) {
      const isNumbered = /^\s*\d/.test(rows[at]);
      const items = [];
      for (; at < rows.length && (ITEM.test(rows[at]) || (rows[at].startsWith("  ") && rows[at].trim())); at += 1)
        if (ITEM.test(rows[at])) items.push(rows[at].replace(ITEM, ""));
        else items[items.length - 1] += ` ${rows[at].trim()}`;
      found.push(h(isNumbered ? "ol" : "ul", {}, items.map((item) => h("li", {}, inline(item)))));
    } else if (/^#{1,6} /.test(rows[at])) {
      found.push(h("p", { class: "heading" }, inline(rows[at].replace(/^#+ /, ""))));
      at += 1;
    } else {
      const lines = [];
      for (; at < rows.length && rows[at].trim() && !FENCE.test(rows[at]) && !ITEM.test(rows[at]); at += 1)
        lines.push(rows[at]);
      found.push(h("p", {}, lines.flatMap((line, index) => (index ? [h("br"), ...inline(line)] : inline(line)))));
    }
  }
  return found;
}

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}
