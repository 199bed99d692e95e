// Line differences of two texts, side by side. The comparison is pure; the table is made of text nodes.

import { button, h } from "./dom.js";
import { count, many } from "./text.js";

const MOST_CELLS = 4_000_000;
const CONTEXT = 3;

// Returns rows {left, right, kind}: a side is {number, text} or null; kind is same, changed, added or removed.
export function compare(before, after) {
  const left = lines(before);
  const right = lines(after);
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let end = 0;
  const room = Math.min(left.length, right.length) - start;
  while (end < room && left[left.length - 1 - end] === right[right.length - 1 - end]) end += 1;
  const rows = [];
  const same = (i, j) => rows.push(row(i, left[i], j, right[j], "same"));
  for (let i = 0; i < start; i += 1) same(i, i);
  between(left, start, left.length - end, right, start, right.length - end, rows);
  for (let k = end; k > 0; k -= 1) same(left.length - k, right.length - k);
  return rows;
}

const lines = (text) => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));
const side = (index, text) => (index === null ? null : { number: index + 1, text });
const row = (i, textLeft, j, textRight, kind) => ({ left: side(i, textLeft), right: side(j, textRight), kind });

function between(left, leftStart, leftEnd, right, rightStart, rightEnd, rows) {
  const n = leftEnd - leftStart;
  const m = rightEnd - rightStart;
  const removed = [];
  const added = [];
  const flush = () => {
    const most = Math.max(removed.length, added.length);
    for (let k = 0; k < most; k += 1) {
      const i = removed[k] ?? null;
      const j = added[k] ?? null;
      const kind = i === null ? "added" : j === null ? "removed" : "changed";
      rows.push(row(i, left[i], j, right[j], kind));
    }
    removed.length = added.length = 0;
  };
  if (n * m > MOST_CELLS) {
    // Too much for a table of common subsequences: show it as replaced, which is true, if not the shortest.
    for (let i = leftStart; i < leftEnd; i += 1) removed.push(i);
    for (let j = rightStart; j < rightEnd; j += 1) added.push(j);
    flush();
    return;
  }
  const table = common(left, leftStart, n, right, rightStart, m);
  let i = 0;
  let j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && left[leftStart + i] === right[rightStart + j]) {
      flush();
      rows.push(row(leftStart + i, left[leftStart + i], rightStart + j, right[rightStart + j], "same"));
      i += 1;
      j += 1;
    } else if (j >= m || (i < n && table[(i + 1) * (m + 1) + j] >= table[i * (m + 1) + j + 1])) {
      removed.push(leftStart + i);
      i += 1;
    } else {
      added.push(rightStart + j);
      j += 1;
    }
  }
  flush();
}

// The length of the longest common subsequence of what follows each pair of places.
function common(left, leftStart, n, right, rightStart, m) {
  const table = new Uint32Array((n + 1) * (m + 1));
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = m - 1; j >= 0; j -= 1) {
      const at = i * (m + 1) + j;
      const isSame = left[leftStart + i] === right[rightStart + j];
      table[at] = isSame ? table[at + m + 2] + 1 : Math.max(table[at + m + 1], table[at + 1]);
    }
  }
  return table;
}

export function diffTable(before, after, names) {
  const rows = compare(before, after);
  const changes = rows.filter((each) => each.kind !== "same").length;
  const body = h("tbody");
  for (const part of folded(rows)) body.append(part.hidden ? fold(part.rows) : h("tr", { class: part.row.kind }, cells(part.row)));
  const head = names.map((name) => h("th", { scope: "col", colspan: "2" }, name));
  const columns = h("colgroup", {}, h("col", { class: "number" }), h("col"), h("col", { class: "number" }), h("col"));
  const table = h("table", { class: "diff" }, columns, h("thead", {}, h("tr", {}, head)), body);
  return h(
    "div",
    {},
    h("p", { class: "muted" }, changes ? changes === 1 ? "One line differs." : `${count(changes)} lines differ.` : "The two revisions have the same text."),
    h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Difference" }, table),
  );
}

function folded(rows) {
  const parts = [];
  let at = 0;
  while (at < rows.length) {
    let end = at;
    while (end < rows.length && rows[end].kind === "same") end += 1;
    const first = at === 0 ? at : at + CONTEXT;
    const last = end === rows.length ? end : end - CONTEXT;
    if (last - first > 4) {
      for (let i = at; i < first; i += 1) parts.push({ row: rows[i] });
      parts.push({ hidden: true, rows: rows.slice(first, last) });
      at = last;
    }
    for (; at < end; at += 1) parts.push({ row: rows[at] });
    if (at < rows.length) parts.push({ row: rows[at++] });
  }
  return parts;
}

function fold(rows) {
  const place = h("tr", { class: "fold" });
  const show = () => place.replaceWith(...rows.map((each) => h("tr", { class: each.kind }, cells(each))));
  place.append(h("td", { colspan: "4" }, button(`Show ${many(rows.length, "equal line")}`, show, { class: "quiet" })));
  return place;
}

const SIGN = { removed: "−", changed: "−", added: "", same: "" };
const SIGN_RIGHT = { added: "+", changed: "+", removed: "", same: "" };

function cells({ left, right, kind }) {
  const [textLeft, textRight] = kind === "changed" ? marked(left.text, right.text) : [left?.text ?? "", right?.text ?? ""];
  return [
    h("td", { class: "number" }, left ? left.number : "", " ", SIGN[kind]),
    h("td", { class: left ? "old" : "none" }, textLeft),
    h("td", { class: "number" }, right ? right.number : "", " ", SIGN_RIGHT[kind]),
    h("td", { class: right ? "new" : "none" }, textRight),
  ];
}

// Mark what lies between the common start and the common end of two lines.
function marked(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let end = 0;
  const room = Math.min(left.length, right.length) - start;
  while (end < room && left[left.length - 1 - end] === right[right.length - 1 - end]) end += 1;
  if (start + end === 0) return [left, right];
  const cut = (text, tag) => [text.slice(0, start), h(tag, {}, text.slice(start, text.length - end)), text.slice(text.length - end)];
  return [cut(left, "del"), cut(right, "ins")];
}
