// The orchestration of a session: its agents and their mailboxes as a graph, the events behind it, and one agent in full.

import { getJson, inspectorPath, isAbort, sessionPath } from "./api.js";
import { layers, orchestrationModel, timeOf, typeOf } from "./agents_model.js";
import { badge, empty, failure, fill, h, loading, longText, svg } from "./dom.js";
import { fields } from "./entry_details.js";
import { toSession } from "./router.js";
import { clock, count, label, many, shorten } from "./text.js";

const BOX = { width: 176, height: 58 };
const GAP = { x: 64, y: 74 };
const PER_ROW = 6;
const MOST_MAILBOXES = 24;
const MOST_EVENTS = 200;
// Events may name anything an agent; the daemon keeps mailboxes and histories only of those with an id of its grammar.
const LEGAL_ID = /^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$/;

export function agentsView({ tenant, session, route, signal }) {
  const base = `${sessionPath(tenant, session)}/orchestration`;
  const graph = h("div", {}, loading("the agents"));
  const pane = h("section", { "aria-label": "Agent" });
  const events = h("section", { "aria-label": "Events" });
  const element = h("div", { class: "stack" }, graph, pane, events);
  let chosen = route.parts[5] ?? null;
  let model = null;
  let mailboxes = new Map();

  async function load() {
    try {
      const state = await getJson(`${inspectorPath(tenant, session)}/orchestration/state`, { signal });
      const listed = await optional(`${base}/agents`);
      model = orchestrationModel(state, (listed?.items ?? []).map((agent) => (typeof agent === "string" ? agent : agent.id)));
      if (!model.agents.size && !state) {
        fill(events);
        return void fill(graph, empty("No orchestration", "A program that runs several agents stores their events here, and they appear as a graph: ", h("code", {}, `POST /v1/tenants/${tenant}/sessions/${session}/orchestration/events`)));
      }
      mailboxes = new Map(await Promise.all([...model.agents.keys()].slice(0, MOST_MAILBOXES).map(async (id) => [id, await mailbox(id)])));
      show(state);
      if (chosen !== null) await showAgent(chosen);
    } catch (error) {
      if (!isAbort(error)) fill(graph, failure(error, load));
    }
  }

  async function optional(path) {
    try {
      return await getJson(path, { signal });
    } catch (error) {
      if (isAbort(error)) throw error;
      return null;
    }
  }

  const stored = async (id, what) => (LEGAL_ID.test(id) ? optional(`${base}/agents/${encodeURIComponent(id)}/${what}`) : null);

  async function mailbox(id) {
    const [letters, state] = await Promise.all([stored(id, "mailbox"), stored(id, "mailbox-state")]);
    const items = letters?.items ?? [];
    const read = state?.state ?? state ?? {};
    const done = Number(read.processedEventCount ?? read.processed_event_count ?? read.processed ?? 0) || 0;
    return { items, state: read, waiting: Math.max(0, items.length - done) };
  }

  function show(state) {
    fill(graph, h("h2", {}, many(model.agents.size, "agent")), h("div", { class: "scroll-x graph", tabindex: "0", role: "region", "aria-label": "Graph of agents" }, drawing()), agentTable());
    const known = state?.events ?? [];
    const note = { checkpoint: "after the latest checkpoint", "no checkpoint": "since the beginning" }[state?.source] ?? `replayed: ${state?.source}`;
    fill(
      events,
      h("h2", {}, `Events ${note}`),
      known.length ? h("ol", { class: "events" }, known.slice(-MOST_EVENTS).map((event) => h("li", {}, h("span", { class: "muted" }, timeOf(event) ? clock(timeOf(event)) : "–"), " ", h("strong", {}, label(typeOf(event))), " ", eventText(event)))) : h("p", { class: "muted" }, "None: the checkpoint has everything."),
      known.length > MOST_EVENTS ? h("p", { class: "muted" }, `The newest ${MOST_EVENTS} of ${count(known.length)}.`) : null,
    );
  }

  // Everything that the picture says, for readers that do not see it.
  function agentTable() {
    const rows = [...model.agents.values()].map((agent) => {
      const box = mailboxes.get(agent.id);
      return h(
        "tr",
        { class: agent.id === chosen ? "current" : "" },
        h("th", { scope: "row" }, h("a", { href: toSession(tenant, session, ["agents", agent.id]) }, agent.name)),
        h("td", {}, agent.role ?? "–"),
        h("td", {}, agent.status ? badge(agent.status, toneOf(agent.status)) : "–"),
        h("td", {}, agent.parent ?? "–"),
        h("td", {}, box ? mailboxText(box) : "–"),
      );
    });
    const head = ["Agent", "Role", "Status", "Started by", "Mailbox"];
    return h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Agents" }, h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows)));
  }

  function drawing() {
    const rows = layers(model.agents).flatMap((row) => Array.from({ length: Math.ceil(row.length / PER_ROW) }, (_, part) => row.slice(part * PER_ROW, (part + 1) * PER_ROW)));
    const widest = Math.max(1, ...rows.map((row) => row.length));
    const width = widest * (BOX.width + GAP.x) + GAP.x;
    const height = rows.length * (BOX.height + GAP.y) - GAP.y + 28;
    const places = new Map();
    rows.forEach((row, y) => {
      const left = (width - row.length * (BOX.width + GAP.x) + GAP.x) / 2;
      row.forEach((agent, x) => places.set(agent.id, { x: left + x * (BOX.width + GAP.x), y: 14 + y * (BOX.height + GAP.y) }));
    });
    const started = [...model.agents.values()].filter((agent) => agent.parent !== null).map((agent) => edge(places.get(agent.parent), places.get(agent.id), "started"));
    const written = model.messages.map(({ from, to, count: number }) => edge(places.get(from), places.get(to), "wrote", String(number)));
    const marker = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0 8 4 0 8z" }));
    return svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Graph of ${many(model.agents.size, "agent")}; the table below says the same` },
      svg("defs", {}, marker("arrow-started"), marker("arrow-wrote")),
      started,
      written,
      [...model.agents.values()].map((agent) => node(agent, places.get(agent.id))),
    );
  }

  function node(agent, { x, y }) {
    const box = mailboxes.get(agent.id);
    const letters = box?.items.length
      ? svg("g", { class: `mailbox ${box.waiting ? "waiting" : ""}` }, svg("rect", { x: x + BOX.width - 58, y: y - 11, width: 52, height: 20, rx: 10 }), svg("text", { x: x + BOX.width - 32, y: y + 3, "text-anchor": "middle" }, `✉ ${box.waiting}/${box.items.length}`))
      : null;
    return svg(
      "g",
      { class: `agent ${agent.id === chosen ? "current" : ""} ${toneOf(agent.status)}`, onclick: () => (location.hash = toSession(tenant, session, ["agents", agent.id])) },
      svg("title", {}, `${agent.name}${agent.status ? `, ${agent.status}` : ""}`),
      svg("rect", { class: "box", x, y, width: BOX.width, height: BOX.height, rx: 8 }),
      svg("circle", { cx: x + 16, cy: y + 21, r: 5 }),
      svg("text", { class: "name", x: x + 29, y: y + 26 }, shorten(agent.name, 18)),
      svg("text", { class: "role", x: x + 16, y: y + 46 }, shorten([agent.role, agent.status].filter(Boolean).join(" · ") || "no status", 26)),
      letters,
    );
  }

  async function showAgent(id) {
    const agent = model?.agents.get(id);
    if (!agent) return void fill(pane, empty(`There is no agent ${id}`, "Choose one in the graph or in the table."));
    fill(pane, loading(agent.name));
    const [box, history] = await Promise.all([mailbox(id), stored(id, "history")]);
    const spoken = history?.history ?? history?.items ?? [];
    fill(
      pane,
      h("h2", {}, agent.name),
      h("h3", {}, `Mailbox: ${mailboxText(box)}`),
      box.items.length ? h("ol", { class: "events" }, box.items.slice(-MOST_EVENTS).map((letter, index) => h("li", { class: index >= box.items.length - box.waiting ? "waiting" : "" }, h("span", { class: "muted" }, timeOf(letter) ? clock(timeOf(letter)) : "–"), " ", h("strong", {}, label(typeOf(letter))), " ", eventText(letter)))) : null,
      fields(box.state),
      spoken.length ? [h("h3", {}, `History, ${many(spoken.length, "item")}`), longText(spoken.map((item) => (typeof item === "string" ? item : `${item.role ?? "item"}: ${textOf(item)}`)).join("\n\n"), { className: "code prose", label: "History" })] : null,
    );
  }

  load();
  return {
    element,
    update(now) {
      chosen = now.parts[5] ?? null;
      load();
    },
    onEvent(event) {
      if (event.kind === "orchestration" || event.kind === "messages") load();
    },
  };
}

const toneOf = (status) => ({ running: "info", idle: "plain", waiting: "warn", completed: "ok", closed: "plain", failed: "bad" })[status] ?? "plain";

function edge(from, to, kind, text) {
  if (!from || !to) return null;
  const isSame = from.y === to.y;
  const [x1, y1] = isSame ? [from.x + (to.x > from.x ? BOX.width : 0), from.y + BOX.height / 2] : [from.x + BOX.width / 2, from.y + (to.y > from.y ? BOX.height : 0)];
  const [x2, y2] = isSame ? [to.x + (to.x > from.x ? 0 : BOX.width), to.y + BOX.height / 2] : [to.x + BOX.width / 2, to.y + (to.y > from.y ? 0 : BOX.height)];
  // Messages bend to the side, so that they are not hidden behind the line of who started whom.
  const bend = kind === "wrote" ? 34 : 0;
  const middle = [(x1 + x2) / 2 + (isSame ? 0 : bend), (y1 + y2) / 2 - (isSame ? bend : 0)];
  const path = svg("path", { d: `M${x1} ${y1} Q${middle[0]} ${middle[1]} ${x2} ${y2}`, "marker-end": `url(#arrow-${kind})` });
  const note = text ? svg("text", { x: (x1 + 2 * middle[0] + x2) / 4 + 4, y: (y1 + 2 * middle[1] + y2) / 4 }, `✉ ${text}`) : null;
  return svg("g", { class: `edge ${kind}` }, path, note);
}

const mailboxText = (box) => (box.items.length ? `${many(box.items.length, "message")}, ${count(box.waiting)} waiting` : "empty");

const textOf = (item) => (typeof item.content === "string" ? item.content : JSON.stringify(item.content ?? item));

function eventText(event) {
  const payload = event.payload ?? event.input ?? event.message ?? event.data ?? event.task;
  const text = typeof payload === "string" ? payload : (payload?.prompt ?? payload?.content ?? payload?.text ?? payload?.description ?? event.prompt ?? event.text ?? event.reason ?? "");
  const who = [event.agentId ?? event.agent_id, event.from && event.to ? `${event.from} → ${event.to}` : null].filter((each) => typeof each === "string").join(" ");
  return shorten(`${who}${who && text ? ": " : ""}${typeof text === "string" ? text : JSON.stringify(text)}`, 240);
}
