// A session's memory: its documents and its user's, as text with history, differences and restore; where each is shown;
// and the full tool results. It writes only when a person confirms a restore.

import { ask, debounced, deep, getJson, getText, inspectorPath, isAbort, sessionPath, userPath } from "./api.js";
import { badge, button, confirmed, empty, failure, fill, h, loading, longText, setText, toast } from "./dom.js";
import { diffTable } from "./diff.js";
import { markdown } from "./markdown.js";
import { to, toDocument, toSession } from "./router.js";
import { ago, bytes, count, many, moment } from "./text.js";

const MOST_RENDERED = 200_000;
const MOST_LISTED = 500;
const SETTLE_MS = 300;

// Without a session it shows the documents of the user alone.
export function memoryView({ tenant, session, user = null, route, signal }) {
  const tree = h("nav", { class: "tree", "aria-label": "Documents and artifacts" }, loading("memory"));
  const pane = h("section", { class: "document", "aria-label": "Document" });
  const element = h("div", { class: "side-by-side" }, tree, pane);
  let shown = route;
  let turns = 0;
  let lists = { session: [], user: [], artifacts: [] };

  const base = (scope) => (scope === "user" ? userPath(tenant, user) : sessionPath(tenant, session));
  const documentAddress = (scope, name, query) =>
    session === null ? to(["tenants", tenant, "users", user, "memory", scope, ...name.split("/")], query) : toDocument(tenant, session, scope, name, query);
  const memo = (scope, name = "") => `${base(scope)}/memo${name ? `/${deep(name)}` : ""}`;

  async function load() {
    try {
      user ??= (await getJson(inspectorPath(tenant, session), { signal })).user;
      const list = async (path) => (await getJson(path, { signal })).items;
      const [own, shared, artifacts] = await Promise.all([
        session === null ? [] : list(memo("session")),
        user ? list(memo("user")) : [],
        session === null ? [] : list(`${sessionPath(tenant, session)}/artifacts`),
      ]);
      lists = { session: own, user: shared, artifacts };
      showTree();
      await showPlace();
    } catch (error) {
      if (!isAbort(error)) fill(tree, failure(error, load));
    }
  }

  function showTree() {
    const [, , , , , scope, ...rest] = shown.parts;
    const current = rest.join("/");
    const documents = (of, title) =>
      h(
        "div",
        { class: "tree-part" },
        h("h2", {}, title),
        lists[of].length
          ? h("ul", {}, lists[of].map((document) => h("li", {}, treeLink(documentAddress(of, document.name), document.name, of === scope && document.name === current, `revision ${document.revision}, ${ago(document.updated_at)}`))))
          : h("p", { class: "muted" }, "None yet"),
      );
    const own = session === null ? null : documents("session", "This session");
    fill(tree, own, user ? documents("user", `User ${user}`) : null, own && artifactTree(scope === "artifacts" ? current : null));
  }

  function artifactTree(current) {
    const list = h("ul", { class: "artifacts" });
    const find = h("input", { type: "search", placeholder: "Find an artifact", "aria-label": "Find an artifact by id", oninput: () => show() });
    const show = () => {
      const text = find.value.trim().toLowerCase();
      const fits = lists.artifacts.filter(({ id }) => id.toLowerCase().includes(text));
      fill(list, fits.slice(0, MOST_LISTED).map(({ id, size }) => h("li", {}, treeLink(toSession(tenant, session, ["memory", "artifacts", id]), id, id === current, size === null ? "" : bytes(size)))));
      if (fits.length > MOST_LISTED) list.append(h("li", { class: "muted" }, `and ${count(fits.length - MOST_LISTED)} more`));
      if (!fits.length && text) list.append(h("li", { class: "muted" }, "None fits"));
    };
    show();
    return h(
      "div",
      { class: "tree-part" },
      h("h2", {}, `Artifacts (${count(lists.artifacts.length)})`),
      lists.artifacts.length > 5 ? find : null,
      lists.artifacts.length ? list : h("p", { class: "muted" }, "None yet. Long tool results are kept here when a session is compacted."),
    );
  }

  async function showPlace() {
    const [, , , , , scope, ...rest] = shown.parts;
    const name = rest.join("/");
    if (scope === "artifacts" && name) return showArtifact(name);
    if ((scope === "session" || scope === "user") && name) return showDocument(scope, name);
    const first = lists.session[0] ? ["session", lists.session[0].name] : lists.user[0] ? ["user", lists.user[0].name] : null;
    if (first) return showDocument(...first);
    const example = session === null ? `--user ${user} USER.md` : `${session} NOTES.md`;
    fill(pane, empty("Nothing is remembered yet", "Write the first document, and every container of the session shows it: ", h("code", {}, `echo '- a note' | sandboxd memo put ${example}`)));
  }

  async function showArtifact(id) {
    turns += 1;
    pane.dataset.shown = "";
    fill(pane, loading("the artifact"));
    try {
      const text = await getText(`${sessionPath(tenant, session)}/artifacts/${encodeURIComponent(id)}`, { signal });
      const known = lists.artifacts.find((artifact) => artifact.id === id);
      fill(
        pane,
        h("h2", {}, id),
        h("p", { class: "muted" }, `The full text of a tool result: ${bytes(text.length)}${known?.at ? `, kept ${moment(known.at)}` : ""}. Inside: `, h("code", {}, `memo/session/tool-results/${id}.txt`)),
        longText(text, { label: `Artifact ${id}` }),
      );
    } catch (error) {
      if (!isAbort(error)) fill(pane, failure(error, () => showArtifact(id)));
    }
  }

  async function showDocument(scope, name) {
    const turn = (turns += 1);
    if (pane.dataset.shown !== `${scope}/${name}`) fill(pane, loading(name));
    pane.dataset.shown = `${scope}/${name}`;
    try {
      const history = (await getJson(`${memo(scope, name)}/history`, { signal })).items;
      if (!history.length) return fill(pane, empty(`${name} was never written`, "A write creates it."));
      const wanted = Number(shown.query.get("revision")) || history[0].revision;
      const [from, to] = [shown.query.get("from"), shown.query.get("to")].map((text) => (text === null ? null : Number(text)));
      const state = { scope, name, history, wanted, isOld: wanted !== history[0].revision };
      const main = from !== null && to !== null ? await difference(state, from, to) : await textOf(state);
      const where = await whereShown(state);
      // The address may have changed while this was read.
      if (turn === turns) fill(pane, documentHead(state), main, historyTable(state), where);
    } catch (error) {
      if (!isAbort(error)) fill(pane, failure(error, () => showDocument(scope, name)));
    }
  }

  const read = async ({ scope, name, history }, revision) => {
    const known = history.find((each) => each.revision === revision);
    if (revision === 0 || known?.deleted) return "";
    return getText(memo(scope, name), { query: { revision }, signal });
  };

  function documentHead({ scope, name, history, wanted, isOld }) {
    const revision = history.find((each) => each.revision === wanted) ?? history[0];
    const listed = lists[scope].find((each) => each.name === name);
    return h(
      "header",
      { class: "document-head" },
      h("h2", {}, name),
      badge(`revision ${revision.revision}${isOld ? "" : ", the newest"}`, isOld ? "warn" : "ok"),
      listed ? h("span", { class: "muted" }, `${many(listed.tokens, "token")}${listed.tokens_exact === false ? " (estimated)" : ""}, ${bytes(revision.size)}`) : null,
      isOld ? h("a", { href: documentAddress(scope, name) }, "Show the newest") : null,
    );
  }

  async function textOf(state) {
    const revision = state.history.find((each) => each.revision === state.wanted);
    if (revision?.deleted) return empty("This revision deleted the document", "Restore an earlier one to bring it back.");
    if (revision?.redacted) return empty("The text of this revision was redacted", "Who wrote it, and when, is kept.");
    const text = await read(state, state.wanted);
    const asRead = text.length <= MOST_RENDERED && /\.(md|markdown)$/i.test(state.name) ? markdown(text) : longText(text, { label: state.name });
    const asSource = longText(text, { label: `Source of ${state.name}` });
    const place = h("div", { class: "document-text" }, asRead);
    let isSource = false;
    const change = button("Source", () => {
      isSource = !isSource;
      fill(place, isSource ? asSource : asRead);
      setText(change, isSource ? "Rendered" : "Source");
    }, { class: "quiet corner" });
    return h("div", { class: "document-box" }, change, text ? place : h("p", { class: "muted" }, "The document is empty."));
  }

  async function difference(state, from, to) {
    const [before, after] = await Promise.all([read(state, from), read(state, to)]);
    const name = (revision) => (revision === 0 ? "before the first revision" : `revision ${revision}`);
    return h(
      "div",
      { class: "document-box" },
      h("h3", {}, `From ${name(from)} to ${name(to)}`),
      diffTable(before, after, [name(from), name(to)]),
      h("p", {}, h("a", { href: documentAddress(state.scope, state.name) }, "Back to the text")),
    );
  }

  function historyTable(state) {
    const { scope, name, history, wanted } = state;
    const head = ["Revision", "Who", "When", "Why", "Size", "Actions"];
    const rows = history.slice(0, MOST_LISTED).map((revision, index) => {
      const before = history[index + 1]?.revision ?? 0;
      const what = revision.deleted ? (revision.moved_to ? `moved to ${revision.moved_to}` : "deleted") : revision.moved_from ? `moved from ${revision.moved_from}` : revision.reason;
      return h(
        "tr",
        { class: revision.revision === wanted ? "current" : "" },
        h("th", { scope: "row" }, h("a", { href: documentAddress(scope, name, { revision: revision.revision }) }, revision.revision)),
        h("td", {}, revision.actor, revision.session && revision.session !== session ? h("span", { class: "muted" }, ` in ${revision.session}`) : null),
        h("td", { title: moment(revision.at) }, ago(revision.at)),
        h("td", {}, what || h("span", { class: "muted" }, "not given")),
        h("td", {}, bytes(revision.size)),
        h(
          "td",
          { class: "row-actions" },
          h("a", { href: documentAddress(scope, name, { from: before, to: revision.revision }) }, "What changed"),
          index > 0 && !revision.deleted && !revision.redacted ? button("Restore", () => restore(state, revision), { class: "quiet" }) : null,
        ),
      );
    });
    return h(
      "section",
      {},
      h("h3", {}, `History, ${many(history.length, "revision")}`),
      h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "History" }, h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows))),
      history.length > MOST_LISTED ? h("p", { class: "muted" }, `The newest ${count(MOST_LISTED)} are listed.`) : null,
    );
  }

  async function restore({ scope, name }, { revision, actor, at }) {
    const text = `The text that ${actor} wrote ${ago(at)} becomes the newest revision of ${name}, in every container that shows it. The revisions after it stay in the history.`;
    if (!(await confirmed(`Restore revision ${revision}?`, text, "Restore"))) return;
    try {
      const headers = { "x-memo-reason": `restore of revision ${revision}` };
      await ask(`${memo(scope, name)}/restore`, { method: "POST", body: { revision }, headers });
      toast(`Revision ${revision} of ${name} is the newest again.`, "ok");
      shown = { ...shown, query: new URLSearchParams() };
      location.hash = documentAddress(scope, name);
      await load();
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  // Which containers show this document, at which revision, and how old that text is.
  async function whereShown({ scope, name, history }) {
    const overview = await getJson("/__inspector/api/overview", { signal });
    const live = overview.sandboxes.filter((each) => each.tenant === tenant && (scope === "user" ? each.user === user : each.session === session));
    const rows = await Promise.all(
      live.slice(0, 50).map(async (sandbox) => {
        try {
          const { items } = await getJson(`${sessionPath(tenant, sandbox.session)}/mirror`, { signal });
          return mirrorRow(sandbox, items.find(({ path }) => path.endsWith(`/memo/${scope}/${name}`)), history);
        } catch (error) {
          if (isAbort(error)) throw error;
          return h("tr", {}, h("th", { scope: "row" }, sandbox.session), h("td", { colspan: "3" }, error.message));
        }
      }),
    );
    const head = ["Container of", "Shows", "Written", "In sync"];
    return h(
      "section",
      {},
      h("h3", {}, "Shown in"),
      rows.length
        ? h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Shown in" }, h("table", { class: "grid" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows)))
        : h("p", { class: "muted" }, "No container shows it now. The next one that starts will."),
    );
  }

  function mirrorRow(sandbox, file, history) {
    const where = h("th", { scope: "row" }, h("a", { href: toSession(tenant, sandbox.session) }, sandbox.session));
    if (!file) return h("tr", {}, where, h("td", { colspan: "3", class: "muted" }, sandbox.state === "ready" ? "does not show it" : `nothing now: it is ${sandbox.state}`));
    const revision = history.find((each) => each.revision === file.revision);
    const delay = file.in_sync ? `yes, after ${file.lag_ms.toFixed(1)} ms` : `no, overdue by ${file.lag_ms.toFixed(0)} ms`;
    return h("tr", {}, where, h("td", {}, `revision ${file.revision}${file.pending ? ", which waits for the store" : ""}`), h("td", {}, revision ? ago(revision.at) : "–"), h("td", {}, badge(delay, file.in_sync ? "ok" : "bad")));
  }

  // A change of the user's document reaches this session as a refresh of its mirror.
  const soon = debounced(load, SETTLE_MS, signal);
  load();
  return {
    element,
    update(now) {
      shown = now;
      showTree();
      showPlace();
    },
    onEvent(event) {
      if (event.kind === "memo" || event.kind === "mirror") soon();
    },
  };
}

function treeLink(href, name, isCurrent, note) {
  return h("a", { href, "aria-current": isCurrent ? "page" : null }, h("span", { class: "tree-name" }, name), h("span", { class: "muted" }, note));
}
