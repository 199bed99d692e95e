// Snapshots and forks of a session: what was copied, from what, and buttons that copy again.

import { ask, getJson, inspectorPath, isAbort, sessionPath } from "./api.js";
import { button, confirmed, empty, failure, fill, h, loading, toast } from "./dom.js";
import { toSession } from "./router.js";
import { ago, bytes } from "./text.js";

export function copiesView({ tenant, session, signal, reload }) {
  const base = sessionPath(tenant, session);
  const snapshots = h("div", {}, loading("the snapshots"));
  const forks = h("div", {});
  const element = h(
    "div",
    { class: "stack" },
    h("section", {}, h("div", { class: "title-row" }, h("h2", {}, "Snapshots"), button("Take a snapshot", take)), snapshots),
    h("section", {}, h("div", { class: "title-row" }, h("h2", {}, "Forks"), button("Fork this session", fork)), forks),
  );

  async function load() {
    try {
      const [{ items }, known] = await Promise.all([getJson(`${base}/snapshots`, { signal }), getJson(inspectorPath(tenant, session), { signal })]);
      fill(snapshots, snapshotTable(items));
      fill(forks, forkTree(known));
    } catch (error) {
      if (!isAbort(error)) fill(snapshots, failure(error, load));
    }
  }

  function snapshotTable(items) {
    if (!items.length) return empty("No snapshot", "A snapshot keeps the files of the workspace as they are now. A new sandbox can begin with it.");
    const head = ["Name", "Id", "Size on disk", "Taken", "Begin with it", "Actions"];
    const rows = items.map((snapshot) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, snapshot.name ?? h("span", { class: "muted" }, "no name")),
        h("td", {}, h("code", {}, snapshot.id)),
        h("td", {}, bytes(snapshot.size_bytes)),
        h("td", { class: "muted" }, ago(snapshot.created_at)),
        h("td", {}, h("code", {}, `sandboxd create NEW --user ${snapshot.user} --from-snapshot ${snapshot.id}`)),
        h("td", { class: "row-actions" }, button("Remove", () => remove(snapshot), { class: "quiet", "aria-label": `Remove the snapshot ${snapshot.name ?? snapshot.id}` })),
      ),
    );
    return h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Snapshots" }, h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows)));
  }

  function forkTree({ parent, forks: children }) {
    if (!parent && !children.length) return empty("Not forked", "A fork is a new session with the same files and, unless you leave it out, the same memory.");
    const own = h("li", {}, h("strong", {}, session), " (this session)", children.length ? h("ul", {}, children.map((name) => h("li", {}, h("a", { href: toSession(tenant, name) }, name)))) : null);
    return h("ul", { class: "family" }, parent ? h("li", {}, h("a", { href: toSession(tenant, parent) }, parent), h("ul", {}, own)) : own);
  }

  async function act(work, done) {
    try {
      const answer = await work();
      toast(done(answer), "ok");
      reload();
    } catch (error) {
      toast(error.message, "bad");
    }
    await load();
  }

  async function take() {
    const name = await confirmed("Take a snapshot", "The files of the workspace are copied while the sandbox runs.", "Take it", { field: { label: "Name (optional)", attributes: { maxlength: 256 } } });
    if (name === null) return;
    await act(() => ask(`${base}/snapshots`, { method: "POST", body: name ? { name } : {} }), () => "The snapshot is taken.");
  }

  async function fork() {
    const name = await confirmed("Fork this session", "A new session begins with its files, messages, documents and artifacts.", "Fork", {
      field: { label: "Name of the new session", attributes: { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._@+\\-]{0,127}", maxlength: 128 } },
    });
    if (!name) return;
    await act(() => ask(`${base}/fork`, { method: "POST", body: { session: name } }), () => `${name} is a fork of ${session}.`);
  }

  async function remove(snapshot) {
    const text = `The files in ${snapshot.name ?? snapshot.id} are lost. Sandboxes that were made from it are not affected.`;
    if (!(await confirmed("Remove this snapshot?", text, "Remove", { danger: true }))) return;
    await act(() => ask(`${base}/snapshots/${encodeURIComponent(snapshot.id)}`, { method: "DELETE" }), () => "The snapshot is removed.");
  }

  load();
  return {
    element,
    onEvent(event) {
      if (["snapshot", "fork", "sandbox"].includes(event.kind)) load();
    },
  };
}
