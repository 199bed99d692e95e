// The overview: is the daemon well, what runs, what it uses, what failed lately.

import { KINDS, debounced, follow, getJson, isAbort } from "./api.js";
import { badge, empty, failure, fill, h, loading, setText } from "./dom.js";
import { linePlot } from "./plot.js";
import { toSession } from "./router.js";
import { causeText, failureText, stateBadge } from "./states.js";
import { liveStats } from "./stats.js";
import { ago, bytes, count, many } from "./text.js";

const AGAIN_MS = 20_000;
const SETTLE_MS = 400;

export function overviewView({ signal }) {
  const cpu = linePlot({ title: "CPU", show: (value) => `${value.toFixed(0)} %`, className: "cpu" });
  const memory = linePlot({ title: "Memory", show: bytes, className: "memory" });
  const disk = linePlot({ title: "Disk", show: bytes, className: "disk" });
  const health = h("div", { class: "cards" }, loading("the overview"));
  const table = h("div", {});
  const failures = h("div", {});
  const rows = new Map();
  const element = h(
    "div",
    { class: "page" },
    h("h1", {}, "Overview"),
    health,
    h("section", {}, h("h2", {}, "This host, live"), h("div", { class: "plots" }, cpu.element, memory.element, disk.element)),
    h("section", {}, h("h2", {}, "Sandboxes"), table),
    h("section", {}, h("h2", {}, "Recent failures"), failures),
  );

  async function load() {
    try {
      const overview = await getJson("/__inspector/api/overview", { signal });
      fill(health, healthCards(overview));
      showSandboxes(overview);
      fill(failures, failureList(overview.failures));
    } catch (error) {
      if (!isAbort(error)) fill(health, failure(error, load));
    }
  }

  function showSandboxes({ sandboxes, states }) {
    rows.clear();
    if (!sandboxes.length) {
      fill(table, empty("No sandbox yet", "Create one, and it appears here: ", h("code", {}, "sandboxd create research --user ada")));
      return;
    }
    const head = ["Session", "User", "State", "CPU", "Memory", "Processes", "Disk", "Since"];
    const body = sandboxes.map((sandbox) => sandboxRow(sandbox, rows));
    fill(
      table,
      stateBar(states),
      h(
        "div",
        { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Sandboxes" },
        h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, body)),
      ),
    );
    if (liveStats.latest) showFigures();
  }

  function showFigures() {
    for (const [name, row] of rows) {
      const figures = liveStats.latestOf(...name.split("\n"));
      if (figures) row(figures);
    }
  }

  liveStats.read((stats) => {
    const { host } = stats.latest;
    cpu.update(stats.host("cpu_percent"), 100);
    memory.update(stats.host("memory_used"), host.memory_total);
    disk.update(stats.host("disk_used"), host.disk_total);
    showFigures();
  }, signal);
  const soon = debounced(load, SETTLE_MS, signal);
  follow("/v1/events", KINDS.filter((kind) => kind !== "mirror"), (event) => {
    if (event.kind === "sandbox" || event.kind === "egress" || event.limits_hit?.length) soon();
  }, signal, { onGap: soon });
  const again = setInterval(load, AGAIN_MS);
  signal.addEventListener("abort", () => clearInterval(again));
  load();
  return { element, title: "Overview" };
}

function healthCards({ ready, checks, pool, sessions, version, engine, store }) {
  const card = (title, value, detail, tone) =>
    h("div", { class: `card ${tone ?? ""}` }, h("p", { class: "card-title" }, title), h("p", { class: "card-value" }, value), h("p", { class: "card-detail" }, detail));
  const parts = { engine, store };
  const checked = checks.map(({ name, ok, detail }) => {
    const known = parts[name];
    const lacks = known?.unsupported?.length ? `Without ${known.unsupported.join(", ")}` : detail;
    return card(name.charAt(0).toUpperCase() + name.slice(1), badge(ok ? "works" : "does not work", ok ? "ok" : "bad"), lacks || "–", ok ? "" : "failed");
  });
  return [
    card("Daemon", badge(ready ? "ready" : "not ready", ready ? "ok" : "bad"), `Version ${version}`),
    checked,
    card("Warm sandboxes", `${count(pool.warm)} of ${count(pool.target)}`, pool.target ? "wait in the pool" : "The pool is off"),
    card("Sessions", sessions === null ? "–" : count(sessions), "in the store"),
  ];
}

function stateBar(states) {
  const used = Object.entries(states).filter(([, number]) => number > 0);
  return h("ul", { class: "states", "aria-label": "Sandboxes by state" }, used.map(([state, number]) => h("li", {}, stateBadge(state), " ", count(number))));
}

function sandboxRow(sandbox, rows) {
  const { tenant, session } = sandbox;
  const spark = linePlot({ title: `CPU of ${session}`, show: (value) => `${value.toFixed(0)} %`, className: "cpu", compact: true });
  const [cpu, memory, processes, disk] = [h("span", { class: "figure" }, "–"), h("span", {}, "–"), h("span", {}, "–"), h("span", {}, "–")];
  const meter = h("meter", { min: 0, max: 1, value: 0, "aria-label": `Memory of ${session}` });
  rows.set(`${tenant}\n${session}`, (figures) => {
    spark.update(liveStats.sandbox(tenant, session, "cpu_percent"), undefined);
    setText(cpu, figures.cpu_percent === null ? "–" : `${figures.cpu_percent.toFixed(0)} %`);
    const limit = figures.memory_limit_bytes;
    setText(memory, limit ? `${bytes(figures.memory_bytes)} of ${bytes(limit)}` : bytes(figures.memory_bytes));
    meter.value = limit ? figures.memory_bytes / limit : 0;
    setText(processes, count(figures.processes));
    setText(disk, bytes(figures.disk_bytes));
  });
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: toSession(tenant, session) }, session), tenant === "default" ? null : h("span", { class: "muted" }, ` in ${tenant}`)),
    h("td", {}, sandbox.user),
    h("td", {}, stateBadge(sandbox.state), sandbox.cause ? h("span", { class: "muted" }, ` ${causeText(sandbox.cause)}`) : null),
    h("td", { class: "with-spark" }, cpu, spark.element),
    h("td", {}, memory, meter),
    h("td", {}, processes),
    h("td", {}, disk),
    h("td", { class: "muted" }, ago(sandbox.created_at)),
  );
}

function failureList(events) {
  if (!events.length) return empty("No failures", "Deaths, limits that were hit, refused connections and failed consolidations appear here with their cause.");
  return [
    h("ul", { class: "failures" }, events.slice(0, 12).map(failureItem)),
    events.length > 12 ? h("p", { class: "muted" }, `The newest 12 of ${many(events.length, "failure")}.`) : null,
  ];
}

function failureItem(event) {
  const { tenant, session, user } = event;
  const where = session ? h("a", { href: toSession(tenant ?? "default", session, ["timeline"], { entry: `e${event.id}` }) }, session) : (user ?? "the daemon");
  return h("li", {}, h("span", { class: "dot bad", "aria-hidden": "true" }), h("span", { class: "where" }, where), h("span", { class: "what" }, failureText(event)), h("time", { class: "muted", datetime: event.at }, ago(event.at)));
}
