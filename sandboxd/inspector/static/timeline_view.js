// A session's timeline: the picture, the list beside it, and the selected entry in full. It loads the compact timeline in
// one request, details on demand, and what is new as events arrive.

import { TIMELINE_PAGE, debounced, getJson, isAbort, timelinePath } from "./api.js";
import { button, empty, failure, fill, h, loading, setText } from "./dom.js";
import { entryDetails } from "./entry_details.js";
import { LANES, kindName, laneClass, laneOf, speakerName } from "./lanes.js";
import { LanePicture } from "./lane_picture.js";
import { turnPlot } from "./plot.js";
import { rename, toSession } from "./router.js";
import { clock, duration, many } from "./text.js";
import { VirtualList } from "./virtual_list.js";

const ROW = 34;
const SETTLE_MS = 300;

export function timelineView({ tenant, session, route, signal }) {
  const path = timelinePath(tenant, session);
  const place = [tenant, session];
  let all = [];
  let shown = [];
  let hidden = new Set();
  let text = "";
  let onlyFailed = false;
  let chosen = route.query.get("entry");
  let detailOf = null;

  const picture = new LanePicture({ onSelect: (index) => list.select(index) });
  const list = new VirtualList({
    label: "Timeline entries, oldest first",
    rowHeight: ROW,
    makeRow: entryRow,
    render: renderRow,
    onSelect: (entry, index) => choose(entry, index),
    onScroll: () => picture.mark(...list.range()),
  });
  const turns = h("div", { class: "turns-place" });
  const amount = h("p", { class: "muted amount", role: "status" });
  const details = h("section", { class: "details-pane", "aria-label": "The selected entry" });
  const filters = h("div", { class: "filters", role: "group", "aria-label": "Lanes" });
  const find = h("input", { type: "search", placeholder: "Filter titles", "aria-label": "Filter by title", oninput: () => filter() });
  const failed = h("input", { type: "checkbox", id: "only-failed", onchange: () => filter() });
  const pictures = h("section", { class: "picture-place", "aria-label": "Picture" }, picture.element, turns);
  const body = h("div", { class: "timeline" }, loading("the timeline"));
  signal.addEventListener("abort", () => {
    picture.close();
    list.close();
  });

  function filter() {
    text = find.value.trim().toLowerCase();
    onlyFailed = failed.checked;
    apply();
  }

  function apply(options) {
    const isAll = !hidden.size && !text && !onlyFailed;
    const fits = (entry) =>
      !hidden.has(entry.lane) && !(onlyFailed && entry.ok !== false) && (!text || entry.title.toLowerCase().includes(text));
    shown = isAll ? all : all.filter(fits);
    list.setItems(shown, options);
    list.selected = chosen === null ? -1 : shown.findIndex((entry) => entry.id === chosen);
    picture.setEntries(shown);
    picture.select(list.selected);
    picture.mark(...list.range());
    setText(amount, isAll ? many(all.length, "entry", "entries") : `${shown.length} of ${many(all.length, "entry", "entries")}`);
  }

  function choose(entry, index) {
    chosen = entry.id;
    picture.select(index);
    rename(toSession(tenant, session, ["timeline"], { entry: entry.id }));
    showDetails(entry.id);
  }

  async function showDetails(id) {
    detailOf?.abort();
    const own = new AbortController();
    detailOf = own;
    details.setAttribute("aria-busy", "true");
    try {
      const entry = await getJson(`${path}/${encodeURIComponent(id)}`, { signal: own.signal });
      fill(details, entryDetails(entry, place));
      details.scrollTop = 0;
    } catch (error) {
      if (!isAbort(error)) fill(details, failure(error, () => showDetails(id)));
    }
    details.removeAttribute("aria-busy");
  }

  function showFilters() {
    const used = new Set(all.map((entry) => entry.lane));
    const lanes = LANES.map(([name]) => name).filter((name) => used.has(name));
    fill(
      filters,
      lanes.map((name) => {
        const chip = button(laneOf(name)[1], () => toggle(name, chip), { class: `chip ${laneClass(name)}`, "aria-pressed": !hidden.has(name) ? "true" : "false" });
        return chip;
      }),
    );
  }

  function toggle(name, chip) {
    if (!hidden.delete(name)) hidden.add(name);
    chip.setAttribute("aria-pressed", hidden.has(name) ? "false" : "true");
    apply();
  }

  function showTurns() {
    const found = all.filter((entry) => entry.kind === "messages" && Number.isFinite(entry.tokens));
    const known = found.map((entry) => ({ id: entry.id, input: entry.tokens_in ?? entry.tokens, output: entry.tokens_out ?? 0 }));
    fill(turns, turnPlot(known, ({ id }) => selectId(id)));
    pictures.classList.toggle("alone", !known.length);
  }

  function selectId(id) {
    const index = shown.findIndex((entry) => entry.id === id);
    if (index >= 0) list.select(index);
  }

  async function load() {
    try {
      const items = [];
      let after;
      do {
        const page = await getJson(path, { query: { ...TIMELINE_PAGE, after }, signal });
        items.push(...page.items);
        after = page.next;
      } while (after);
      all = items;
      show();
    } catch (error) {
      if (!isAbort(error)) fill(body, failure(error, load));
    }
  }

  function show() {
    if (!all.length) {
      fill(body, empty("Nothing has happened in this session yet", "Run a command in it, and it appears here at once: ", h("code", {}, `sandboxd exec ${session} 'echo hello'`)));
      return;
    }
    fill(details, empty("No entry is selected", "Choose one in the list or in the picture to see its text, output and limits. Arrow keys move."));
    body.classList.add("filled");
    fill(
      body,
      pictures,
      h("div", { class: "toolbar" }, filters, find, h("label", { class: "check", for: "only-failed" }, failed, "Failures only"), amount),
      h("div", { class: "split" }, list.element, details),
    );
    showFilters();
    showTurns();
    apply();
    if (chosen !== null && list.selected < 0) fill(details, empty("This entry is not in the timeline", "The link may be of another session, or the entry is no longer kept."));
    if (list.selected >= 0) list.select(list.selected);
    else list.scrollToEnd();
  }

  // What is new follows the last entry; if anything else changed, the whole timeline is loaded again.
  const refresh = debounced(async () => {
    if (!all.length) return load();
    try {
      const page = await getJson(path, { query: { ...TIMELINE_PAGE, after: all.at(-1).id }, signal });
      if (page.next || page.total !== all.length + page.items.length) return load();
      if (!page.items.length) return;
      all = all.concat(page.items);
      apply({ keepEnd: true });
      showFilters();
      showTurns();
    } catch (error) {
      if (!isAbort(error)) load();
    }
  }, SETTLE_MS, signal);

  load();
  return {
    element: body,
    isFitted: true,
    onEvent: refresh,
    keys: { "+": () => picture.zoom(2), "-": () => picture.zoom(0.5), 0: () => picture.showAll(), j: () => step(1), k: () => step(-1) },
  };

  function step(by) {
    if (shown.length) list.select(Math.max(0, Math.min(shown.length - 1, list.selected + by)));
  }
}

function entryRow() {
  const row = h(
    "div",
    { class: "entry-row" },
    h("span", { class: "dot" }),
    h("span", { class: "row-time" }),
    h("span", { class: "row-kind" }),
    h("span", { class: "row-title" }),
    h("span", { class: "row-mark" }),
    h("span", { class: "row-took" }),
  );
  return row;
}

function renderRow(row, entry) {
  const [dot, time, kind, title, mark, took] = row.children;
  dot.className = `dot ${laneClass(entry.lane)}`;
  setText(time, entry.at ? clock(entry.at) : "");
  setText(kind, entry.kind === "message" ? speakerName(entry.lane) : kindName(entry.kind));
  setText(title, entry.title);
  setText(mark, entry.ok === false ? "failed" : "");
  setText(took, entry.duration_ms === undefined ? "" : duration(entry.duration_ms));
  row.classList.toggle("is-failed", entry.ok === false);
}
