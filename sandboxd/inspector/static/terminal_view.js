// A terminal in the sandbox: keys to bytes over a WebSocket, bytes to a screen. Leaving the page detaches; the shell stays.

import { sessionPath } from "./api.js";
import { button, empty, fill, h, setText } from "./dom.js";
import { TerminalScreen } from "./terminal_screen.js";

const MOST_MESSAGE = 32_768;
const MOST_COLUMNS = 300;
const KEYS = {
  Enter: "\r",
  Backspace: "\u007f",
  Tab: "\t",
  Escape: "\u001b",
  Delete: "\u001b[3~",
  Insert: "\u001b[2~",
  PageUp: "\u001b[5~",
  PageDown: "\u001b[6~",
};
const CURSOR = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

export function terminalView({ tenant, session, route, signal, getSession }) {
  const attached = route.query.get("process");
  const state = h("p", { class: "muted", role: "status" });
  const input = h("textarea", {
    class: "terminal-input",
    rows: 1,
    autocapitalize: "off",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": `Terminal of ${session}. Shift and Escape leave it`,
  });
  const place = h("div", { class: "terminal", onclick: () => window.getSelection().isCollapsed && input.focus({ preventScroll: true }) });
  const again = h("div", { class: "actions" });
  const element = h("div", { class: "terminal-tab" }, state, place, again, h("p", { class: "muted" }, h("kbd", {}, "Shift"), " ", h("kbd", {}, "Esc"), " leaves the terminal; all other keys go to the shell."));
  let socket = null;
  let screen = null;
  const encoder = new TextEncoder();
  const watch = new ResizeObserver(() => fit());
  signal.addEventListener("abort", () => {
    watch.disconnect();
    socket?.close();
  });

  function open() {
    const decoder = new TextDecoder("utf-8");
    screen = new TerminalScreen(80, 24, { reply: send });
    fill(again);
    fill(place, screen.element, input);
    const [columns, rows] = measure();
    screen.resize(columns, rows);
    screen.onDraw = () => (place.scrollTop = place.scrollHeight);
    const query = new URLSearchParams(attached === null ? {} : { process: attached });
    query.set("cols", columns);
    query.set("rows", rows);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}${sessionPath(tenant, session)}/pty?${query}`);
    socket.binaryType = "arraybuffer";
    setText(state, "Connecting…");
    socket.onmessage = ({ data }) => (typeof data === "string" ? told(JSON.parse(data)) : screen.write(decoder.decode(data, { stream: true })));
    socket.onclose = ({ code }) => {
      if (signal.aborted) return;
      place.classList.remove("open");
      if (code === 1006) setText(state, "The connection was refused or lost.");
      fill(again, button(attached === null ? "Open a new terminal" : "Attach again", open, { class: "primary" }));
    };
    watch.observe(place);
    input.focus({ preventScroll: true });
  }

  function told(message) {
    if (message.type === "attached") {
      place.classList.add("open");
      setText(state, `Connected to process ${message.process} of ${session}.`);
    } else if (message.type === "dropped") screen.note(`${message.size_bytes} bytes of output were dropped`);
    else if (message.type === "exit") setText(state, message.exit_code === null ? "The shell has ended." : `The shell ended with exit code ${message.exit_code}.`);
    else if (message.type === "error") setText(state, message.detail);
  }

  function send(text) {
    if (socket?.readyState !== WebSocket.OPEN) return;
    const data = encoder.encode(text);
    for (let at = 0; at < data.length; at += MOST_MESSAGE) socket.send(data.slice(at, at + MOST_MESSAGE));
  }

  function measure() {
    const probe = h("span", { class: "probe" }, "M".repeat(20));
    place.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    const style = getComputedStyle(place);
    const room = place.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const high = place.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    const columns = Math.floor(room / (width / 20 || 8));
    return [Math.max(20, Math.min(MOST_COLUMNS, columns)), Math.max(6, Math.min(100, Math.floor(high / (height || 18))))];
  }

  function fit() {
    if (!screen) return;
    const [columns, rows] = measure();
    if (columns === screen.columns && rows === screen.rows) return;
    screen.resize(columns, rows);
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "resize", cols: columns, rows }));
  }

  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape" && event.shiftKey) {
      document.querySelector(".tabs a[aria-current]")?.focus();
      event.preventDefault();
      return;
    }
    const text = keyText(event, screen);
    event.stopPropagation();
    if (text === null) return;
    event.preventDefault();
    send(text);
  });
  input.addEventListener("input", (event) => {
    if (event.isComposing) return;
    send(input.value);
    input.value = "";
  });
  input.addEventListener("compositionend", () => {
    send(input.value);
    input.value = "";
  });
  input.addEventListener("paste", (event) => {
    event.preventDefault();
    const text = event.clipboardData.getData("text").replace(/\r?\n/g, "\r");
    send(screen.bracketedPaste ? `\u001b[200~${text.replaceAll("\u001b", "")}\u001b[201~` : text);
  });

  function begin() {
    const sandbox = getSession()?.sandbox;
    if (sandbox === undefined) return setText(state, "Looking for the sandbox…");
    setText(state, "");
    if (sandbox === null) fill(place, empty("No sandbox", "A terminal runs in a sandbox. Create one: ", h("code", {}, `sandboxd create ${session} --user USER`)));
    else if (sandbox.state === "ready") open();
    else {
      fill(place, empty(`The sandbox is ${sandbox.state}`, "A terminal resumes it."));
      fill(again, button("Resume it and open a terminal", open, { class: "primary" }));
    }
  }

  // The view is put into the page after it was made; its size is known only then.
  requestAnimationFrame(() => {
    if (!signal.aborted) begin();
  });
  return { element, onSession: () => socket === null && begin() };
}

function keyText(event, screen) {
  const { key, ctrlKey, altKey, metaKey } = event;
  if (metaKey) return null;
  if (CURSOR[key]) return `\u001b${screen?.applicationCursor ? "O" : "["}${CURSOR[key]}`;
  if (key === "Tab" && event.shiftKey) return "\u001b[Z";
  if (KEYS[key]) return (altKey ? "\u001b" : "") + KEYS[key];
  const isText = [...key].length === 1;
  if (ctrlKey && isText) {
    if (event.shiftKey && "CV".includes(key.toUpperCase())) return null;
    const code = key.toUpperCase().charCodeAt(0);
    if (code >= 0x40 && code <= 0x5f) return String.fromCharCode(code - 0x40);
    return key === " " ? "\u0000" : null;
  }
  if (altKey && isText) return `\u001b${key}`;
  // Plain text arrives as input, so that input methods and phones work.
  return null;
}

