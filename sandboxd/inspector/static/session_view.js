// One session: its head, its tabs, and the one stream of its events that all tabs share.

import { KINDS, debounced, follow, getJson, inspectorPath, isAbort } from "./api.js";
import { failure, fill, h, loading } from "./dom.js";
import { go, to, toSession } from "./router.js";
import { causeText, stateBadge } from "./states.js";
import { ago, count, rough } from "./text.js";

const TABS = [
  ["timeline", "Timeline", async () => (await import("./timeline_view.js")).timelineView],
  ["memory", "Memory", async () => (await import("./memory_view.js")).memoryView],
  ["files", "Files", async () => (await import("./files_view.js")).filesView],
  ["processes", "Processes", async () => (await import("./processes_view.js")).processesView],
  ["terminal", "Terminal", async () => (await import("./terminal_view.js")).terminalView],
  ["agents", "Agents", async () => (await import("./agents_view.js")).agentsView],
  ["copies", "Snapshots and forks", async () => (await import("./copies_view.js")).copiesView],
];
const SETTLE_MS = 400;

export function sessionView({ route, signal }) {
  const [, tenant, , session] = route.parts;
  const head = h("div", { class: "session-facts" }, loading("the session"));
  const links = TABS.map(([name, title], index) => h("a", { href: toSession(tenant, session, [name]), title: `${title} (${index + 1})` }, title));
  const body = h("div", { class: "tab-body" });
  const element = h(
    "div",
    { class: "page wide" },
    h("header", { class: "session-head" }, h("h1", {}, session), head),
    h("nav", { class: "tabs", "aria-label": `Session ${session}` }, links),
    body,
  );
  const view = { element, title: session, update, keys: {} };
  let known = null;
  let tab = null;
  let steps = 0;

  async function load() {
    try {
      known = await getJson(inspectorPath(tenant, session), { signal });
      fill(head, headOf(known));
      tab?.view.onSession?.(known);
    } catch (error) {
      if (isAbort(error)) return;
      if (error.status === 404) fill(head, h("p", { class: "bad-text" }, "There is no such session. It may have been removed."), h("p", {}, h("a", { href: "#/sessions" }, "All sessions")));
      else fill(head, failure(error, load));
    }
  }

  async function update(now) {
    const step = (steps += 1);
    const name = now.parts[4] ?? "timeline";
    const index = Math.max(0, TABS.findIndex(([each]) => each === name));
    links.forEach((link, place) => (place === index ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    if (tab?.index === index && tab.view.update) return void tab.view.update(now);
    const make = await TABS[index][2]();
    if (signal.aborted || step !== steps) return;
    tab?.stop.abort();
    const stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort(), { signal: stop.signal });
    const made = make({ tenant, session, route: now, signal: stop.signal, getSession: () => known, reload: load });
    tab = { index, stop, view: made };
    element.classList.toggle("fitted", made.isFitted === true);
    body.replaceChildren(made.element);
    const tabKeys = Object.fromEntries(TABS.map(([each], place) => [String(place + 1), () => go(toSession(tenant, session, [each]))]));
    view.keys = { ...tabKeys, ...made.keys };
  }

  const soon = debounced(load, SETTLE_MS, signal);
  // Every kind of event that a tab waits for may have been missed.
  const onGap = () => {
    soon();
    for (const kind of ["sandbox", "memo", "process", "snapshot", "orchestration"]) tab?.view.onEvent?.({ kind });
  };
  const query = new URLSearchParams({ tenant, session });
  follow(`/v1/events?${query}`, KINDS, (event) => {
    if (event.session !== undefined && event.session !== session) return;
    if (event.kind === "sandbox" || event.kind === "messages") soon();
    tab?.view.onEvent?.(event);
  }, signal, { onGap });
  load();
  update(route);
  return view;
}

function headOf(known) {
  const { sandbox, parent, tenant } = known;
  const fact = (name, value) => h("span", { class: "fact" }, h("span", { class: "muted" }, name), " ", value);
  return [
    sandbox ? stateBadge(sandbox.state) : stateBadge(null),
    sandbox?.cause ? h("span", { class: "muted" }, causeText(sandbox.cause)) : null,
    known.user ? fact("user", h("a", { href: to(["tenants", tenant, "users", known.user]) }, known.user)) : null,
    tenant && tenant !== "default" ? fact("tenant", tenant) : null,
    known.agent ? fact("agent", known.agent) : null,
    Number.isFinite(known.turns) ? fact("turns", count(known.turns)) : null,
    Number.isFinite(known.tokens) ? fact("tokens", rough(known.tokens)) : null,
    sandbox?.engine ? fact("engine", sandbox.engine) : null,
    parent ? fact("forked from", h("a", { href: toSession(tenant, parent) }, parent)) : null,
    known.created_at ? fact("created", ago(known.created_at)) : null,
  ];
}
