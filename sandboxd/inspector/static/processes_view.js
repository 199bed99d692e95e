// The background processes of a session and the live output of one. It waits for output in the daemon, not by polling.

import { ask, getJson, isAbort, sessionPath } from "./api.js";
import { badge, button, confirmed, empty, failure, fill, h, loading, toast } from "./dom.js";
import { go, toSession } from "./router.js";
import { TerminalScreen } from "./terminal_screen.js";
import { ago, bytes, shorten } from "./text.js";

const WAIT_S = 20;
const FIRST_BYTES = 262_144;
const COLUMNS = 160;

export function processesView({ tenant, session, route, signal }) {
  const base = `${sessionPath(tenant, session)}/processes`;
  const list = h("div", {}, loading("the processes"));
  const pane = h("section", { class: "process", "aria-label": "Output" });
  const element = h("div", { class: "stack" }, list, pane);
  let chosen = route.parts[5] ?? null;
  let following = null;

  async function load() {
    try {
      const { items } = await getJson(base, { signal });
      showList(items);
      if (chosen === null && items.length === 1) chosen = items[0].id;
      const process = items.find(({ id }) => id === chosen);
      if (process && following?.id !== chosen) show(process);
      else if (chosen !== null && !process) fill(pane, empty(`There is no process ${chosen}`, "It may have been forgotten when its sandbox was replaced."));
    } catch (error) {
      if (isAbort(error)) return;
      fill(list, error.status === 404 ? empty("No sandbox", "Processes run in a sandbox. Create one: ", h("code", {}, `sandboxd create ${session} --user USER`)) : failure(error, load));
    }
  }

  function showList(items) {
    if (!items.length) {
      fill(list, empty("No background process", "Start one, and its output appears here as it is written: ", h("code", {}, `sandboxd tool ${session} Bash command='make test' run_in_background=true`)));
      return;
    }
    const head = ["Process", "Command", "State", "Output", "Started", "Actions"];
    const rows = items.map((process) =>
      h(
        "tr",
        { class: process.id === chosen ? "current" : "" },
        h("th", { scope: "row" }, h("a", { href: toSession(tenant, session, ["processes", process.id]) }, process.id)),
        h("td", { class: "command-cell" }, h("code", {}, shorten(process.command, 120))),
        h("td", {}, process.running ? badge("running", "ok") : badge(`exit ${process.exit_code ?? "unknown"}`, process.exit_code === 0 ? "plain" : "bad")),
        h("td", {}, bytes(process.output_bytes)),
        h("td", { class: "muted" }, process.started_at ? ago(process.started_at) : "–"),
        h(
          "td",
          { class: "row-actions" },
          process.tty && process.running ? h("a", { href: toSession(tenant, session, ["terminal"], { process: process.id }) }, "Attach") : null,
          process.running ? button("Kill", () => kill(process), { class: "quiet" }) : null,
        ),
      ),
    );
    fill(list, h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Processes" }, h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows))));
  }

  async function kill(process) {
    const text = `${shorten(process.command, 200)} and everything that it started end at once.`;
    if (!(await confirmed(`Kill ${process.id}?`, text, "Kill", { danger: true }))) return;
    try {
      await ask(`${base}/${process.id}`, { method: "DELETE" });
      toast(`Process ${process.id} has ended.`, "ok");
    } catch (error) {
      toast(error.message, "bad");
    }
    load();
  }

  function show(process) {
    following?.stop.abort();
    const stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort(), { signal: stop.signal });
    following = { id: process.id, stop };
    const screen = new TerminalScreen(COLUMNS, 1, { growing: true });
    const state = h("span", { class: "muted", role: "status" });
    const output = h("div", { class: "process-output", tabindex: "0", role: "log", "aria-label": `Output of ${process.id}`, "aria-live": "off" }, screen.element);
    fill(pane, h("header", { class: "document-head" }, h("h2", {}, `Process ${process.id}`), h("code", {}, shorten(process.command, 200)), state), output);
    readOn(process.id, Math.max(0, process.output_bytes - FIRST_BYTES), screen, output, state, stop.signal);
  }

  async function readOn(id, from, screen, output, state, until) {
    const decoder = new TextDecoder("utf-8");
    let offset = from;
    fill(state, offset ? `live, from byte ${offset}` : "live");
    try {
      for (;;) {
        const page = await getJson(`${base}/${id}`, { query: { offset, limit: FIRST_BYTES, wait_s: WAIT_S, encoding: "base64" }, signal: until });
        const isAtEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
        if (page.data) screen.write(decoder.decode(bytesOf(page.data), { stream: true }));
        if (isAtEnd) output.scrollTop = output.scrollHeight;
        offset = page.next_offset;
        if (page.process.running || offset < page.process.output_bytes) continue;
        fill(state, `ended with exit code ${page.process.exit_code ?? "unknown"}`);
        return void load();
      }
    } catch (error) {
      if (!isAbort(error)) fill(state, error.message);
    }
  }

  load();
  return {
    element,
    update(now) {
      chosen = now.parts[5] ?? null;
      load();
    },
    onEvent(event) {
      if (event.kind === "process" || event.kind === "sandbox") load();
    },
    keys: { r: load, a: () => chosen && go(toSession(tenant, session, ["terminal"], { process: chosen })) },
  };
}

export const bytesOf = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
