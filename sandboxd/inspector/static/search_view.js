// Search over sessions, messages, documents and artifacts, with what was found marked in its text.

import { getJson, isAbort } from "./api.js";
import { empty, failure, fill, h, loading } from "./dom.js";
import { to, toDocument, toSession } from "./router.js";
import { ago, many } from "./text.js";

const MOST = 100;
const GROUPS = [
  ["session", "Sessions"],
  ["message", "Messages"],
  ["document", "Documents"],
  ["artifact", "Artifacts"],
];

export function searchView({ route, signal }) {
  const field = document.getElementById("find-text");
  const place = h("div", { "aria-live": "polite" });
  const title = h("h1", {});
  const element = h("div", { class: "page" }, title, place);
  let request = null;
  const view = { element, title: "Search", update };
  signal.addEventListener("abort", () => request?.abort());

  async function update(now) {
    const q = now.query.get("q") ?? "";
    field.value = q;
    fill(title, q ? ["Search for ", h("q", {}, q)] : "Search");
    if (!q) return void fill(place, empty("What are you looking for?", "Type a word of a message, a note, a tool result or a session. Upper and lower case are the same."));
    request?.abort();
    request = new AbortController();
    fill(place, loading("what fits"));
    try {
      const found = await getJson("/__inspector/api/search", { query: { q, limit: MOST }, signal: request.signal });
      fill(place, results(found, q));
    } catch (error) {
      if (!isAbort(error)) fill(place, failure(error, () => update(now)));
    }
  }

  update(route);
  return view;
}

function results({ items, incomplete }, q) {
  const note = incomplete ? h("p", { class: "muted" }, "The search stopped early because there is much to look at. A longer text finds less, and more exactly.") : null;
  if (!items.length) return [empty("Nothing fits", "Search finds whole pieces of text, as they are written. Try a shorter one."), note];
  const groups = GROUPS.map(([type, title]) => {
    const fits = items.filter((item) => item.type === type);
    if (!fits.length) return null;
    return h("section", { class: "hits", "aria-label": title }, h("h2", {}, title, h("span", { class: "muted" }, ` ${fits.length}`)), h("ul", {}, fits.map((item) => hit(item, q))));
  });
  return [h("p", { class: "muted" }, many(items.length, "result"), items.length >= MOST ? ", the most that are shown" : ""), groups, note];
}

function hit(item, q) {
  const where = item.session ?? item.user ?? item.tenant;
  return h(
    "li",
    {},
    h("a", { href: placeOf(item) }, nameOf(item)),
    h("span", { class: "muted" }, item.type === "session" ? ` of ${item.user}` : ` in ${where}`, item.at ? `, ${ago(item.at)}` : ""),
    item.snippet ? h("p", { class: "snippet" }, marked(item.snippet, q)) : null,
  );
}

function nameOf(item) {
  if (item.type === "session") return item.session;
  if (item.type === "message") return `Message ${item.index + 1}`;
  return item.name;
}

function placeOf(item) {
  const { tenant, session, user, name } = item;
  if (item.type === "message") return toSession(tenant, session, ["timeline"], { entry: `m${item.index}` });
  if (item.type === "artifact") return toSession(tenant, session, ["memory", "artifacts", name]);
  if (item.type === "document") return session ? toDocument(tenant, session, "session", name) : to(["tenants", tenant, "users", user, "memory", "user", ...name.split("/")]);
  return toSession(tenant, session);
}

export function marked(text, q) {
  const made = [];
  const folded = text.toLowerCase();
  const wanted = q.toLowerCase();
  // Folding may change the length of a text; then the places do not fit, and nothing is marked.
  if (!wanted || folded.length !== text.length) return text;
  let last = 0;
  for (let at = folded.indexOf(wanted); at >= 0; at = folded.indexOf(wanted, last)) {
    made.push(text.slice(last, at), h("mark", {}, text.slice(at, at + wanted.length)));
    last = at + wanted.length;
  }
  return [...made, text.slice(last)];
}
