// The frame of the page: the current view, the status of the connection, and the login.

import { hasKey } from "./api.js";
import { chat } from "./chat.js";
import { cluster } from "./cluster.js";
import { h, icon, number, show, span, words } from "./dom.js";
import { askForKey, enter, follow, isSilent, leave, listen, live } from "./live.js";
import { models } from "./models.js";
import { pool } from "./pool.js";
import { requests } from "./requests.js";
import { settings } from "./settings.js";
import { T } from "./texts.js";
import { watch } from "./watch.js";

const VIEWS = { chat, cluster, models, pool, requests, watch, settings };
const ICONS = {
  chat: "M3 4h14v9H9l-4 4v-4H3z",
  cluster: "M10 3a2 2 0 1 0 .01 0M4 13a2 2 0 1 0 .01 0M16 13a2 2 0 1 0 .01 0M9 7l-4 6M11 7l4 6M6 15h8",
  models: "M3 6l7-3 7 3-7 3zM3 10l7 3 7-3M3 14l7 3 7-3",
  pool: "M5 5h10v10H5zM8 2v3M12 2v3M8 15v3M12 15v3M2 8h3M2 12h3M15 8h3M15 12h3",
  requests: "M4 5h12M4 10h8M4 15h10",
  watch: "M3 16V4M3 16h14M5 13l4-5 3 3 5-7",
  settings: "M3 5h8M15 5h2M13 3v4M3 10h2M9 10h8M7 8v4M3 15h7M14 15h3M12 13v4",
};
const THEMES = ["auto", "light", "dark"];
const BACK_S = 6;

let shown = null;
let notice = null;
let theme = localStorage.getItem("shoal.theme") || "auto";
const main = h("main", { id: "main", tabindex: "0" });
const rail = h("header", { class: "rail" });
const notices = h("div", { class: "notices", role: "status" });

function start() {
  const skip = (event) => {
    event.preventDefault();
    main.focus();
  };
  document.body.replaceChildren(h("a", { class: "skip", href: "#main", onclick: skip }, T.skip), rail, notices, main);
  paint();
  listen((what, value) => {
    if (what === "back") say(T.status.back(span(value)));
    frame();
    if (live.status === "login") login();
    else if (shown === null || what === "status") open();
    else if (!main.classList.contains("closed")) VIEWS[shown].update?.(what);
  });
  addEventListener("hashchange", () => live.status !== "login" && open());
  open();
  follow();
}

/** Open the view in the URL's hash. */
function open() {
  const wanted = location.hash.slice(1);
  const name = wanted in VIEWS ? wanted : "chat";
  const isClosed = live.status === "limited" && name !== "chat";
  if (shown === name && isClosed === main.classList.contains("closed")) return;
  if (shown !== null) VIEWS[shown].close?.();
  main.replaceChildren();
  main.scrollTop = 0;
  main.className = `view ${name}`;
  shown = name;
  document.title = `${T.views[name]} · ${T.name}`;
  if (isClosed) {
    main.classList.add("closed");
    main.replaceChildren(h("header", { class: "head" }, h("h1", {}, T.views[name])), h("div", { class: "body" }, h("p", {}, words(hasKey() ? T.status.closed : T.status.strange))));
  } else VIEWS[name].open(main);
  frame();
}

function frame() {
  const links = Object.keys(VIEWS).map((name) =>
    h(
      "a",
      { href: `#${name}`, "aria-current": name === shown ? "page" : null, "data-key": name },
      icon(ICONS[name]),
      h("span", {}, T.views[name]),
    ),
  );
  show(
    rail,
    h("a", { class: "brand", href: "#chat" }, h("img", { src: "/dashboard/icon.svg", alt: "", width: 24, height: 24 }), T.name),
    h("nav", { "aria-label": T.navigation }, links),
    h("div", { class: "foot" }, pulse(), h("div", { class: "small" }, themeButton(), h("a", { href: "/docs" }, T.elsewhere), keyButton())),
  );
  const isLost = live.status === "lost" && live.snapshot !== null;
  const lines = [];
  if (isLost) lines.push(h("p", { class: "bad" }, T.status.lost(span(Math.round(performance.now() / 1000 - live.lostAt)))));
  if (notice) lines.push(h("p", { class: "good" }, notice));
  show(notices, lines);
  document.body.classList.toggle("stale", isLost);
}

/** Show a notice for a moment. */
function say(text) {
  notice = text;
  frame();
  setTimeout(() => {
    if (notice === text) notice = null;
    frame();
  }, BACK_S * 1000);
}

function pulse() {
  const [tone, line] = condition();
  const rate = live.status === "live" ? T.status.speed(number(live.snapshot.generation_tokens_per_s)) : null;
  return h("a", { class: `pulse ${tone}`, href: "#cluster" }, h("i", {}), h("span", {}, line), rate && h("small", {}, rate));
}

/** Return the overall status, as a tone and a text. */
function condition() {
  const { status, snapshot } = live;
  if (status === "lost") return ["bad", T.status.connecting];
  if (status !== "live") return ["idle", T.status[status]];
  if (!snapshot.live) return ["warn", T.status.unsettled];
  const silent = snapshot.nodes.filter(isSilent);
  if (silent.length) return ["bad", T.status.silent(silent.map((node) => node.name))];
  const ill = snapshot.nodes.filter((node) => node.health.status !== "ok");
  const tone = ill.some((node) => node.health.status === "error") ? "bad" : "warn";
  if (ill.length) return [tone, T.status.ill(ill.map((node) => node.name))];
  return ["good", T.status.nodes(snapshot.nodes.length)];
}

function themeButton() {
  const turn = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("shoal.theme", theme);
    paint();
    frame();
  };
  const shape = "M10 3a7 7 0 1 0 .01 0M10 3v14";
  return h("button", { class: "plain", onclick: turn, title: T.theme[theme], "aria-label": T.theme[theme] }, icon(shape));
}

const paint = () => document.documentElement.style.setProperty("color-scheme", theme === "auto" ? "light dark" : theme);

function keyButton() {
  if (hasKey()) return h("button", { class: "plain", onclick: leave }, T.login.leave);
  return live.status === "limited" && h("button", { class: "plain", onclick: askForKey }, T.login.give);
}

function login() {
  if (main.classList.contains("login") && !live.keyRefused) return;
  if (shown !== null) VIEWS[shown].close?.();
  shown = null;
  main.className = "view login";
  document.title = `${T.login.title} · ${T.name}`;
  const field = h("input", {
    type: "password", id: "key", name: "key", autocomplete: "current-password", required: true, spellcheck: "false",
    "aria-describedby": live.keyRefused ? "key-wrong" : null, "aria-invalid": live.keyRefused ? "true" : null,
  });
  const sent = (event) => {
    event.preventDefault();
    main.className = "view";
    if (field.value.trim()) enter(field.value.trim());
  };
  main.replaceChildren(
    h(
      "form", { class: "card", onsubmit: sent },
      h("h1", {}, T.login.title),
      h("p", {}, T.login.why),
      h("label", { for: "key" }, T.login.key),
      h("div", { class: "row" }, field, h("button", { class: "main" }, T.login.enter)),
      live.keyRefused && h("p", { class: "bad", id: "key-wrong", role: "alert" }, T.login.wrong),
      h("p", { class: "dim" }, words(T.login.how)),
    ),
  );
  field.focus();
  live.keyRefused = false;
}

start();
setInterval(() => live.status === "lost" && frame(), 1000);
