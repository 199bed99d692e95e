// What is remembered about a user: their documents, and when consolidation last ran and why it will run again.

import { getJson, isAbort, userPath } from "./api.js";
import { badge, fill, h, loading } from "./dom.js";
import { memoryView } from "./memory_view.js";
import { to } from "./router.js";
import { ago, many } from "./text.js";

export function userView({ route, signal }) {
  const [, tenant, , user] = route.parts;
  const head = h("div", { class: "session-facts" }, loading("the user"));
  const memory = memoryView({ tenant, session: null, user, route, signal });
  const element = h("div", { class: "page wide" }, h("header", { class: "session-head" }, h("h1", {}, user), head), memory.element);

  async function load() {
    const links = h("a", { href: to(["sessions"], { user }) }, "Their sessions");
    try {
      const state = await getJson(`${userPath(tenant, user)}/consolidation`, { signal });
      fill(
        head,
        links,
        badge(state.due ? "consolidation is due" : "consolidation is not due", state.failure ? "bad" : "plain"),
        h("span", { class: "muted" }, state.failure ? `failed ${many(state.failure.count, "time")}: ${state.failure.reason}` : state.why),
        state.last_run_at ? h("span", { class: "muted" }, `last run ${ago(state.last_run_at)}: ${state.last_outcome ?? "no outcome"}`) : null,
      );
    } catch (error) {
      // Not every store can consolidate; the documents are there all the same.
      if (!isAbort(error)) fill(head, links);
    }
  }

  load();
  return { element, title: user, update: memory.update };
}
