// Keyboard shortcuts: one key, or `g` and a second one. They are off while a field has the focus, and can be turned off.

import { h } from "./dom.js";

const PREFIX_MS = 1500;
const LISTED = [
  ["?", "This list"],
  ["/", "Search"],
  ["g o", "Overview"],
  ["g s", "Sessions"],
  ["1 … 7", "The tabs of a session"],
  ["j k", "Next and previous entry"],
  ["+ − 0", "Zoom the timeline in, out, to everything"],
  ["← →", "In the picture: the entry before or after"],
  ["t", "Theme: as the system, light, dark"],
  ["Shift Esc", "Leave the terminal"],
  ["Esc", "Close a dialog"],
];

export class Keys {
  #actions;
  #prefix = "";
  #prefixAt = 0;

  constructor(actions) {
    this.#actions = actions;
    this.isOn = stored();
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  set(isOn) {
    this.isOn = isOn;
    try {
      localStorage.setItem("keys", isOn ? "on" : "off");
    } catch {
      // Not kept by this browser: it lasts until the page is left.
    }
  }

  #press(event) {
    if (!this.isOn || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog, [contenteditable]")) return;
    const prefix = event.timeStamp - this.#prefixAt < PREFIX_MS ? this.#prefix : "";
    this.#prefix = "";
    if (event.key === "g") {
      this.#prefix = "g ";
      this.#prefixAt = event.timeStamp;
      return;
    }
    const action = this.#actions[prefix + event.key] ?? this.#actions.view(prefix + event.key);
    if (!action) return;
    event.preventDefault();
    action();
  }
}

function stored() {
  try {
    return localStorage.getItem("keys") !== "off";
  } catch {
    return true;
  }
}

export function showHelp(keys) {
  const rows = LISTED.map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, key.split(" ").map((one) => [h("kbd", {}, one), " "])), h("td", {}, what)));
  const box = h("input", { type: "checkbox", id: "keys-on", checked: keys.isOn, onchange: () => keys.set(box.checked) });
  const dialog = h(
    "dialog",
    { class: "dialog help", "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keyboard shortcuts"),
    h("table", {}, h("tbody", {}, rows)),
    h("label", { class: "check", for: "keys-on" }, box, "Shortcuts of one key are on"),
    h("form", { method: "dialog", class: "actions" }, h("button", { class: "primary" }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
