// One entry of the timeline in full: a message as text, a command with its output and limits, a write with its revision.

import { append, badge, facts, h, longText } from "./dom.js";
import { kindName, laneClass } from "./lanes.js";
import { markdown } from "./markdown.js";
import { toDocument, toSession } from "./router.js";
import { bytes, count, duration, label, moment, shorten } from "./text.js";

const MOST_RENDERED = 40_000;

export function entryDetails(entry, place) {
  const source = entry.detail ?? {};
  const { message } = source;
  const data = source.data && typeof source.data === "object" ? source.data : source;
  const body = h("div", { class: "entry-body" });
  append(body, [message ? messageParts(message) : eventParts(entry, data, source.detail ?? {}, place)]);
  const raw = h("details", { class: "raw" }, h("summary", {}, "Every field"));
  // Made when it is opened: most readers never look, and a message may have megabytes.
  raw.addEventListener("toggle", () => {
    if (raw.open && raw.childElementCount === 1) raw.append(longText(JSON.stringify(source, null, 2), { label: "Every field" }));
  });
  return h(
    "article",
    { class: "entry", "aria-label": "Details" },
    h(
      "header",
      {},
      h("span", { class: `dot ${laneClass(entry.lane)}`, "aria-hidden": "true" }),
      h("h2", {}, message ? roleName(message.role) : sentence(kindName(entry.kind))),
      entry.ok === false ? badge("failed", "bad") : entry.ok === true ? badge("ok", "ok") : null,
      h("span", { class: "muted entry-time" }, entry.at ? moment(entry.at) : "no time"),
    ),
    body,
    raw,
  );
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const roleName = (role) => ({ user: "User", assistant: "Assistant", toolResult: "Tool result" })[role] ?? label(role ?? "message");

function messageParts(message) {
  const parts = typeof message.content === "string" ? [message.content] : Array.isArray(message.content) ? message.content : [];
  const calls = [message.toolCalls, message.tool_calls].find(Array.isArray) ?? [];
  return [
    facts([
      ["Tool", message.toolName ?? message.name],
      ["Call", message.toolCallId ?? message.tool_call_id],
      ["Model", message.model],
    ]),
    parts.map((part) => messagePart(part, message.role)),
    calls.map((call) => callPart(call)),
    !parts.length && !calls.length ? h("p", { class: "muted" }, "This message has no text.") : null,
  ];
}

function messagePart(part, role) {
  if (typeof part === "string") return prose(part, role);
  if (!part || typeof part !== "object") return longText(String(part));
  if (typeof part.text === "string") return prose(part.text, role);
  if (typeof part.thinking === "string") return h("details", {}, h("summary", {}, "Thinking"), prose(part.thinking, role));
  if (part.name || part.toolName) return callPart(part);
  if (part.content !== undefined) return [].concat(part.content).map((inner) => messagePart(inner, "toolResult"));
  return h("p", { class: "muted" }, `A part of the kind ${part.type ?? "unknown"}.`);
}

// Results of tools are output, not prose: they stay as they are.
function prose(text, role) {
  if (role === "toolResult" || text.length > MOST_RENDERED || text.split("\n").some((line) => line.length > 4000)) {
    return longText(text, { label: "Text of the message" });
  }
  return markdown(text);
}

function callPart(call) {
  const called = call.function ?? call;
  let given = called.arguments ?? called.input ?? called.args ?? {};
  if (typeof given === "string") {
    try {
      given = JSON.parse(given);
    } catch {
      given = { arguments: given };
    }
  }
  return h("section", { class: "call" }, h("h3", {}, "Calls ", h("code", {}, called.name ?? called.toolName ?? "a tool")), fields(given));
}

const SHOWN_ABOVE = new Set(["command", "exit_code", "limits_hit", "timed_out", "duration_ms", "actor", "tenant", "session", "user"]);

function eventParts(entry, data, detail, place) {
  const limits = [].concat(data.limits_hit ?? []);
  const rest = Object.fromEntries(Object.entries(data).filter(([name]) => !SHOWN_ABOVE.has(name)));
  const { output, ...more } = detail && typeof detail === "object" ? detail : {};
  return [
    data.command ? [h("h3", {}, "Command"), longText(commandText(data.command), { className: "code command", label: "Command" })] : h("p", { class: "entry-title" }, entry.title),
    facts([
      ["Exit code", data.exit_code ?? (data.timed_out ? "none: it timed out" : null)],
      ["Limits hit", limits.length ? badge(limits.join(", "), "bad") : null],
      ["Took", data.duration_ms === undefined ? null : duration(data.duration_ms)],
      ["By", data.actor],
    ]),
    entry.kind === "memo" && documentLink(data, place),
    entry.kind === "process" && data.process ? h("p", {}, h("a", { href: toSession(...place, ["processes", data.process]) }, "Open this process")) : null,
    output === undefined ? null : [h("h3", {}, "Output"), longText(typeof output === "string" ? output : JSON.stringify(output, null, 2), { label: "Output" })],
    fields(rest),
    fields(more),
  ];
}

const commandText = (command) => (Array.isArray(command) ? command.map(String).join(" ") : String(command));

function documentLink(data, [tenant, session]) {
  if (data.artifact) return h("p", {}, h("a", { href: toSession(tenant, session, ["memory", "artifacts", data.artifact]) }, "Open this artifact"));
  if (typeof data.name !== "string") return null;
  // A write to a document of the user names no session.
  const scope = data.session ? "session" : "user";
  const links = [h("a", { href: toDocument(tenant, session, scope, data.name, { revision: data.revision }) }, `Open ${data.name}`)];
  if (data.revision > 1) {
    links.push(" · ", h("a", { href: toDocument(tenant, session, scope, data.name, { from: data.revision - 1, to: data.revision }) }, "What this write changed"));
  }
  return h("p", {}, links);
}

const SIZES = /(^|_)bytes($|_)|^size$/;
const TIMES = /(^|_)at$/;

// Fields of any object as a table. A nested object is a table of its own, three levels deep.
export function fields(object, depth = 0) {
  const entries = Object.entries(object ?? {}).slice(0, 200);
  if (!entries.length) return null;
  const rows = entries.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, label(shorten(name, 80))), h("td", {}, shown(name, value, depth))));
  return h("table", { class: "fields" }, h("tbody", {}, rows));
}

function shown(name, value, depth) {
  if (value === null || value === undefined) return h("span", { class: "muted" }, "none");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return SIZES.test(name) ? bytes(value) : name.endsWith("_ms") || name === "ms" ? duration(value) : count(value);
  if (typeof value === "string") {
    if (TIMES.test(name) && !Number.isNaN(Date.parse(value))) return moment(value);
    return value.length > 120 || value.includes("\n") ? longText(value, { label: label(name) }) : value || h("span", { class: "muted" }, "empty");
  }
  if (Array.isArray(value) && value.every((item) => typeof item !== "object")) return value.slice(0, 100).join(", ") || h("span", { class: "muted" }, "none");
  if (depth >= 3) return longText(JSON.stringify(value, null, 2), { label: label(name) });
  return Array.isArray(value) ? h("ol", {}, value.slice(0, 100).map((item) => h("li", {}, shown(name, item, depth + 1)))) : fields(value, depth + 1);
}
