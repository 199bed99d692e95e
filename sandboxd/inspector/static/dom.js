// Builds the page's elements. Strings become text nodes with their hidden controls shown; nothing here parses HTML.

import { bytes, count, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const LINKS = /^(?:#\/|https?:\/\/|mailto:|blob:)/i;

export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "href" && !LINKS.test(value)) throw new TypeError("refused a link");
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

export const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);

export const badge = (text, tone = "plain") => h("span", { class: `badge ${tone}` }, text);

// What to show where nothing is: what it means, and the next step.
export function empty(title, next, ...actions) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, next), actions);
}

export function failure(error, again) {
  return h(
    "div",
    { class: "empty failed", role: "alert" },
    h("p", { class: "empty-title" }, "This could not be loaded"),
    h("p", {}, error.message),
    again && button("Try again", again),
  );
}

export const loading = (what) => h("p", { class: "loading" }, `Loading ${what}…`);

// A list of facts, without those that are not known.
export function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

const MOST_LINE = 2000;
const MOST_SHOWN = 65_536;

// A text of any size. Long lines and long texts are cut, because laying out a line of 1 MB stops the page for seconds;
// a button shows the whole.
export function longText(text, { className = "code", label } = {}) {
  const whole = String(text);
  const cut = cutText(whole);
  const pre = h("pre", { class: className, tabindex: "0", role: "region", "aria-label": label ?? "Text" }, cut);
  if (cut === whole) return pre;
  const place = h("div", { class: "long" }, pre);
  const size = whole.length < 10_000 ? `${count(whole.length)} characters` : bytes(whole.length);
  place.append(
    button(`Show all ${size}`, (event) => {
      fill(pre, whole);
      event.target.remove();
      pre.focus();
    }),
  );
  return place;
}

function cutText(text) {
  const start = text.length > MOST_SHOWN ? text.slice(0, MOST_SHOWN) : text;
  const lines = start.split("\n");
  if (start === text && lines.every((line) => line.length <= MOST_LINE)) return text;
  const cut = lines.map((line) => (line.length > MOST_LINE ? `${line.slice(0, MOST_LINE)} …` : line)).join("\n");
  return start === text ? cut : `${cut}\n…`;
}

export function toast(text, tone = "plain") {
  const note = h("div", { class: `toast ${tone}` }, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), 8000);
}

// Ask before an action that cannot be taken back with one click. Resolves to whether it was confirmed.
export function confirmed(title, text, action, { danger = false, field } = {}) {
  return new Promise((resolve) => {
    const input = field && h("input", { id: "dialog-field", type: "text", autocomplete: "off", ...field.attributes });
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-labelledby": "dialog-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        h("p", {}, text),
        input && [h("label", { for: "dialog-field" }, field.label), input],
        h(
          "div",
          { class: "actions" },
          h("button", { value: "no", formnovalidate: true }, "Cancel"),
          h("button", { value: "yes", class: danger ? "danger" : "primary" }, action),
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      const agreed = dialog.returnValue === "yes";
      dialog.remove();
      resolve(agreed ? (input ? input.value.trim() : true) : null);
    });
    // Enter in the field confirms; without this the first button, Cancel, would be the default one.
    input?.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (input.reportValidity()) dialog.close("yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
