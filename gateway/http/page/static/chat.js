// Chat with a model: one streamed answer at a time, its parameters, and chats that are stored only in
// this browser.

import { bodyOf, stream } from "./api.js";
import { h, number, prose, show, span } from "./dom.js";
import { live, modelsKnown } from "./live.js";
import { T } from "./texts.js";

const CHATS = "shoal.chats";
const PARAMETERS = "shoal.parameters";
const MOST_CHATS = 40;
const MOST_CHARS = 2_000_000;

const C = T.chat;
let chats = stored(CHATS, []);
let parameters = stored(PARAMETERS, {});
let current = fresh();
let running = null;
let draft = "";
let announcement = "";
let root = null;
let drawn = false;
let sticks = true;

function stored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function fresh() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", model: parameters?.model ?? "", messages: [] };
}

function keep() {
  current.title ||= current.messages[0]?.content.slice(0, 60) ?? "";
  if (current.messages.length) chats = [current, ...chats.filter((chat) => chat.id !== current.id)].slice(0, MOST_CHATS);
  let text = JSON.stringify(chats);
  while (text.length > MOST_CHARS && chats.length > 1) {
    chats.pop();
    text = JSON.stringify(chats);
  }
  try {
    localStorage.setItem(CHATS, text);
  } catch {
    // storage is full or disabled: the chat still works
  }
}

export const chat = {
  open(main) {
    root = main;
    sticks = true;
    draw();
    root.querySelector("textarea#message")?.focus({ preventScroll: true });
  },
  update(what) {
    if (what !== "snapshot") draw();
  },
  close() {
    root = null;
  },
};

/** Draw at the next frame, once for all changes until then. */
function drawSoon() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    draw();
  });
}

const chatModels = () => (live.models ?? []).filter((model) => (model.capabilities ?? ["completion"]).includes("completion"));

/** Return the model for the next answer: the chat's model if it is listed, else a loaded one. */
function chosen() {
  const all = chatModels();
  const named = all.find((model) => model.id === current.model);
  return named ?? all.find((model) => model.loaded) ?? all[0] ?? null;
}

function draw() {
  if (root === null) return;
  const log = root.querySelector(".log");
  if (log) sticks = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  show(root, head(), h("div", { class: "log", role: "log", "aria-label": C.title, "aria-busy": running ? "true" : "false", tabindex: "0" }, transcript()), composer());
  const now = root.querySelector(".log");
  if (sticks) now.scrollTop = now.scrollHeight;
}

// --- the head: model, chats, parameters -----------------------------------------------------------

function head() {
  const model = chosen();
  const change = (event) => {
    current.model = parameters.model = event.target.value;
    localStorage.setItem(PARAMETERS, JSON.stringify(parameters));
    draw();
  };
  const options = chatModels().map((candidate) =>
    h("option", { value: candidate.id, "data-key": candidate.id, selected: candidate.id === model?.id }, candidate.id),
  );
  const begin = () => {
    running?.abort();
    current = fresh();
    draw();
    root.querySelector("textarea#message").focus();
  };
  return h(
    "header", { class: "head" },
    h("h1", { class: "visually-hidden" }, C.title),
    h("label", { class: "visually-hidden", for: "model" }, C.model),
    h("select", { id: "model", onchange: change, disabled: !options.length }, options.length ? options : h("option", {}, live.models ? C.noModel : T.loading)),
    h("div", { class: "spacer" }),
    h("button", { onclick: begin }, C.fresh),
    menu(C.chats, chatList()),
    menu(C.parameters, parameterForm(model)),
  );
}

/** Return a button with a panel below it; Escape and a click elsewhere close the panel. */
function menu(title, content) {
  const close = (event) => {
    if (event.key !== "Escape") return;
    event.currentTarget.open = false;
    event.currentTarget.querySelector("summary").focus();
  };
  return h("details", { class: "menu", "data-key": title, onkeydown: close }, h("summary", {}, title), h("div", { class: "panel" }, content));
}

addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.menu[open]")) if (!open.contains(event.target)) open.open = false;
});

function chatList() {
  const rows = chats.map((entry) => {
    const go = (event) => {
      running?.abort();
      current = entry;
      event.currentTarget.closest("details").open = false;
      sticks = true;
      draw();
    };
    const remove = (event) => {
      event.stopPropagation();
      chats = chats.filter((other) => other !== entry);
      if (current === entry) current = fresh();
      localStorage.setItem(CHATS, JSON.stringify(chats));
      draw();
    };
    return h(
      "li", { "data-key": entry.id },
      h("button", { class: "plain title", onclick: go, "aria-current": entry === current ? "true" : null }, entry.title),
      h("button", { class: "plain", onclick: remove, "aria-label": C.remove(entry.title), title: C.remove(entry.title) }, "×"),
    );
  });
  return rows.length ? [h("ul", { class: "chats" }, rows), h("p", { class: "dim" }, C.kept)] : h("p", { class: "dim" }, C.noChats);
}

function parameterForm(model) {
  const can = model?.capabilities ?? [];
  const changed = (name) => (event) => {
    parameters[name] = event.target.value;
    localStorage.setItem(PARAMETERS, JSON.stringify(parameters));
  };
  const field = (name, label, more) => {
    const id = `parameter-${name}`;
    const value = parameters[name] ?? "";
    const attributes = { id, oninput: changed(name) };
    const control =
      more === "text"
        ? h("textarea", { ...attributes, rows: 3, spellcheck: "false" }, value)
        : Array.isArray(more)
          ? h("select", attributes, more.map(([word, text]) => h("option", { value: word, selected: word === value }, text)))
          : h("input", { ...attributes, ...more, value, type: "number", placeholder: C.asDefault });
    return h("div", { class: more === "text" ? "field wide" : "field", "data-key": name }, h("label", { for: id }, label), control);
  };
  return h(
    "div", { class: "fields" },
    field("system", C.system, "text"),
    field("temperature", C.temperature, { min: 0, max: 2, step: 0.1 }),
    field("top_p", C.topP, { min: 0, max: 1, step: 0.05 }),
    field("max_tokens", C.maxTokens, { min: 1, step: 1 }),
    field("seed", C.seed, { min: 0, step: 1 }),
    can.includes("thinking") && field("reasoning_effort", C.thinks, Object.entries(C.thinkChoices)),
    can.includes("tools") && field("tools", C.tools, "text"),
  );
}

// --- the transcript ---------------------------------------------------------------------------------

function transcript() {
  if (!current.messages.length)
    return h(
      "div", { class: "hello" },
      h("p", {}, C.hello),
      h("div", { class: "ideas" }, C.ideas.map((idea) => h("button", { onclick: () => send(idea) }, idea))),
    );
  return current.messages.map((message, index) =>
    message.role === "user"
      ? h("article", { class: "user", "aria-label": C.you }, h("p", {}, message.content))
      : answer(message, index === current.messages.length - 1),
  );
}

function answer(message, isLast) {
  const isComing = isLast && running !== null;
  return h(
    "article", { class: "answer", "aria-label": message.model },
    message.thinking && h("details", { class: "thinking" }, h("summary", {}, C.thinking), h("div", {}, prose(message.thinking))),
    prose(message.content),
    message.calls.map((call, index) => callCard(message, call, index, isLast && !isComing)),
    isComing && !message.content && !message.thinking && h("p", { class: "dim waiting" }, h("i", {}), message.note || C.waiting),
    message.error && h("p", { class: "bad", role: "alert" }, message.error),
    !isComing && h("footer", {}, figures(message), isLast && buttons(message)),
    isComing && message.content && h("footer", {}, figures(message)),
  );
}

function figures(message) {
  const { tokens, ttftS, rate, usage, finish } = message;
  const texts = [C.figures(number(tokens), ttftS && span(ttftS), rate && number(rate))];
  if (usage) texts.push(C.prompt(number(usage.prompt_tokens), usage.prompt_tokens_details?.cached_tokens));
  if (finish === "length") texts.push(C.cut);
  if (finish === "stopped") texts.push(C.stopped);
  return h("span", { class: "figures" }, message.model, " · ", texts.join(" · "));
}

function buttons(message) {
  const again = () => {
    current.messages.pop();
    generate();
  };
  return h(
    "span", { class: "acts" },
    h("button", { class: "plain", onclick: () => navigator.clipboard?.writeText(message.content) }, C.copy),
    h("button", { class: "plain", onclick: again }, C.again),
  );
}

function callCard(message, call, index, isOpen) {
  const results = (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    call.result = form.elements.result.value;
    if (message.calls.every((other) => other.result !== undefined)) generate();
    else draw();
  };
  return h(
    "div", { class: "call" },
    h("strong", {}, C.call(call.name)),
    h("pre", { tabindex: "0" }, h("code", {}, call.arguments)),
    call.result !== undefined && h("p", {}, call.result),
    isOpen && call.result === undefined &&
      h("form", { class: "row", onsubmit: results },
        h("input", { name: "result", placeholder: C.result, "aria-label": `${C.result}: ${call.name} ${index + 1}` }),
        h("button", {}, C.giveResults)),
  );
}

// --- the composer -----------------------------------------------------------------------------------

function composer() {
  const typed = (event) => {
    draft = event.target.value;
    fit(event.target);
  };
  const pressed = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) submit(event.target);
  };
  const sent = (event) => {
    event.preventDefault();
    if (running) running.abort();
    else submit(event.currentTarget.querySelector("textarea"));
  };
  return h(
    "form", { class: "composer", onsubmit: sent },
    h("label", { class: "visually-hidden", for: "message" }, C.message),
    h("textarea", { id: "message", rows: 1, placeholder: C.placeholder, oninput: typed, onkeydown: pressed, "aria-describedby": "keys" }, draft),
    h("button", { class: running ? "stop" : "main" }, running ? C.stop : C.send),
    h("small", { id: "keys" }, C.keys),
    h("span", { class: "visually-hidden", role: "status" }, announcement),
  );
}

function fit(field) {
  field.style.setProperty("height", "auto");
  field.style.setProperty("height", `${Math.min(field.scrollHeight + 2, 200)}px`);
}

function submit(field) {
  const text = field.value.trim();
  if (!text) return;
  draft = field.value = "";
  fit(field);
  send(text);
}

function send(text) {
  current.messages.push({ role: "user", content: text });
  generate();
}

// --- one answer -------------------------------------------------------------------------------------

/** Let the model answer the current chat; show the answer as it arrives. */
async function generate() {
  const mine = current;
  const stop = (running = new AbortController());
  announcement = C.answering;
  draw();
  await modelsKnown(stop.signal);
  const model = chosen()?.id ?? current.model;
  const message = { role: "assistant", model, content: "", thinking: "", calls: [], tokens: 0 };
  mine.messages.push(message);
  sticks = true;
  draw();
  const request = body(mine.messages, model, message);
  if (request !== null) await stream(request, message, stop.signal, drawSoon);
  if (running === stop) running = null;
  announcement = C.answered;
  if (mine === current) keep();
  draw();
}

/** Return the body of the request; null if there is none, with the reason in `message.error`. */
function body(messages, model, message) {
  if (!model) {
    message.error = live.models ? C.noModel : C.modelsUnknown;
    return null;
  }
  try {
    return bodyOf(messages, parameters, model);
  } catch {
    message.error = C.badTools;
    return null;
  }
}
