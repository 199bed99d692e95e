// Every session of the store, newest first, in pages, by text and by user.

import { debounced, getJson, isAbort } from "./api.js";
import { append, button, empty, failure, fill, h, loading, setText } from "./dom.js";
import { rename, to, toSession } from "./router.js";
import { stateBadge } from "./states.js";
import { ago, count, many, rough } from "./text.js";

const PAGE = 50;
const SETTLE_MS = 250;

export function sessionsView({ route, signal }) {
  const text = h("input", { type: "search", id: "sessions-q", value: route.query.get("q") ?? "", autocomplete: "off" });
  const user = h("input", { type: "search", id: "sessions-user", value: route.query.get("user") ?? "", autocomplete: "off" });
  const body = h("tbody");
  const head = ["Session", "User", "Sandbox", "Turns", "Messages", "Tokens", "Changed"];
  const place = h("div", {}, loading("the sessions"));
  const amount = h("p", { class: "muted", role: "status" });
  const more = button("Show more", () => load(false));
  let cursor = null;
  let request = null;
  let shown = 0;
  const element = h(
    "div",
    { class: "page" },
    h("h1", {}, "Sessions"),
    h(
      "form",
      { class: "toolbar", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "sessions-q" }, "Contains"),
      text,
      h("label", { for: "sessions-user" }, "User"),
      user,
      amount,
    ),
    place,
  );

  async function load(isFirst) {
    request?.abort();
    const own = new AbortController();
    request = own;
    const query = { q: text.value.trim(), user: user.value.trim(), limit: PAGE, cursor: isFirst ? undefined : cursor };
    try {
      const page = await getJson("/__inspector/api/sessions", { query, signal: own.signal });
      if (isFirst) {
        shown = 0;
        fill(body);
      }
      cursor = page.next;
      shown += page.items.length;
      append(body, page.items.map(sessionRow));
      show(query);
    } catch (error) {
      if (!isAbort(error)) fill(place, failure(error, () => load(true)));
    }
  }

  function show({ q, user: wanted }) {
    setText(amount, cursor ? `The newest ${count(shown)}` : many(shown, "session"));
    if (!shown) {
      const isFiltered = q || wanted;
      fill(
        place,
        isFiltered
          ? empty("No session fits", "Shorten the text, or leave the user out.")
          : empty("No session yet", "A session begins with its sandbox, or with its first message: ", h("code", {}, "sandboxd create research --user ada")),
      );
      return;
    }
    const columns = h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name))));
    fill(place, h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Sessions" }, h("table", { class: "grid" }, columns, body)), cursor ? more : null);
  }

  const search = debounced(() => {
    rename(to(["sessions"], { q: text.value.trim(), user: user.value.trim() }));
    load(true);
  }, SETTLE_MS, signal);
  text.addEventListener("input", search);
  user.addEventListener("input", search);
  signal.addEventListener("abort", () => request?.abort());
  load(true);
  return { element, title: "Sessions" };
}

function sessionRow(session) {
  if (session.error) {
    const name = session.session ?? "A session";
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", { colspan: "6", class: "bad-text" }, `cannot be read: ${session.error}`));
  }
  const { tenant } = session;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: toSession(tenant, session.session) }, session.session), tenant === "default" ? null : h("span", { class: "muted" }, ` in ${tenant}`)),
    h("td", {}, session.user ?? "–"),
    h("td", {}, session.state ? stateBadge(session.state) : h("span", { class: "muted" }, "none")),
    h("td", {}, count(session.turns)),
    h("td", {}, count(session.message_count)),
    h("td", {}, rough(session.tokens)),
    h("td", { class: "muted" }, session.updated_at ? ago(session.updated_at) : "–"),
  );
}
