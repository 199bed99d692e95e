// Markdown as elements. It builds nodes and never parses HTML: tags in the source are text, images are links, and links
// lead only to http, https and mailto. A subset that covers what agents write: headings, lists, tasks, tables, quotes,
// code, emphasis.

import { h } from "./dom.js";

const MOST_DEPTH = 12;
const MOST_INLINE = 20_000;
const SAFE_LINK = /^(?:https?:\/\/|mailto:)[^\s<>"'`\\]+$/i;

export function markdown(source) {
  const lines = String(source).replace(/\r\n?/g, "\n").split("\n");
  return h("div", { class: "markdown" }, blocks(lines, 0));
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:\s+(.*)|\s*)$/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$/;

function blocks(lines, depth) {
  if (depth > MOST_DEPTH) return [h("p", {}, lines.join("\n"))];
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (!line.trim()) at += 1;
    else if ((found = FENCE.exec(line))) at = fence(lines, at, found, made);
    else if ((found = HEADING.exec(line))) {
      // The page has its own h1: a heading of a document must not come before it in the outline.
      made.push(h(`h${Math.min(6, found[1].length + 2)}`, { class: `md-h${found[1].length}` }, inline(found[2])));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(h("hr"));
      at += 1;
    } else if (QUOTE.test(line)) at = quote(lines, at, made, depth);
    else if (ITEM.test(line)) at = list(lines, at, made, depth);
    else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) at = table(lines, at, made);
    else at = paragraph(lines, at, made);
  }
  return made;
}

function fence(lines, at, [, mark, language], made) {
  const end = lines.findIndex((line, index) => index > at && line.trim().startsWith(mark[0].repeat(mark.length)));
  const last = end < 0 ? lines.length : end;
  const named = language.trim().split(/\s/, 1)[0].slice(0, 30);
  const code = h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": named ? `Code, ${named}` : "Code" });
  code.append(h("code", {}, lines.slice(at + 1, last).join("\n")));
  made.push(code);
  return last + 1;
}

function quote(lines, at, made, depth) {
  const inside = [];
  while (at < lines.length && QUOTE.test(lines[at])) inside.push(QUOTE.exec(lines[at++])[1]);
  made.push(h("blockquote", {}, blocks(inside, depth + 1)));
  return at;
}

function list(lines, at, made, depth) {
  const isOrdered = /\d/.test(ITEM.exec(lines[at])[2]);
  const items = [];
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || /\d/.test(found[2]) !== isOrdered || RULE.test(lines[at])) break;
    const indent = found[1].length + found[2].length + 1;
    const inside = [found[3] ?? ""];
    at += 1;
    while (at < lines.length) {
      const line = lines[at];
      const isDeeper = line.search(/\S/) >= Math.min(indent, 2);
      if (!line.trim() && lines[at + 1] !== undefined && lines[at + 1].search(/\S/) >= 2) inside.push("");
      else if (line.trim() && isDeeper) inside.push(line.slice(Math.min(indent, line.search(/\S/))));
      else break;
      at += 1;
    }
    items.push(item(inside, depth));
    while (at < lines.length - 1 && !lines[at].trim() && ITEM.test(lines[at + 1])) at += 1;
  }
  made.push(h(isOrdered ? "ol" : "ul", {}, items));
  return at;
}

function item(lines, depth) {
  const task = /^\[([ xX])\]\s+(.*)$/.exec(lines[0]);
  if (task) {
    const isDone = task[1] !== " ";
    const box = h("span", { class: `task ${isDone ? "done" : ""}`, role: "img", "aria-label": isDone ? "done" : "to do" });
    return h("li", { class: "task-item" }, box, inline(task[2]), blocks(lines.slice(1), depth + 1));
  }
  const isPlain = lines.length === 1 || !lines.slice(1).some((line) => line.trim());
  return h("li", {}, isPlain ? inline(lines[0]) : blocks(lines, depth + 1));
}

function table(lines, at, made) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 50).map((cell) => cell.trim());
  const head = cells(lines[at]);
  at += 2;
  const rows = [];
  while (at < lines.length && lines[at].includes("|") && lines[at].trim()) rows.push(cells(lines[at++]));
  const body = rows.map((row) => h("tr", {}, head.map((_, index) => h("td", {}, inline(row[index] ?? "")))));
  const columns = h("tr", {}, head.map((cell) => h("th", { scope: "col" }, inline(cell))));
  const whole = h("table", {}, h("thead", {}, columns), h("tbody", {}, body));
  made.push(h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Table" }, whole));
  return at;
}

const STARTS = [FENCE, HEADING, RULE, QUOTE, ITEM];

function paragraph(lines, at, made) {
  const own = [lines[at++]];
  while (at < lines.length && lines[at].trim() && !STARTS.some((start) => start.test(lines[at]))) own.push(lines[at++]);
  made.push(h("p", {}, inline(own.join("\n"))));
  return at;
}

// Each pattern is linear in its input: no nested repetition, and a bounded length.
const INLINE = new RegExp(
  [
    /(?<escaped>\\[!-/:-@[-`{-~])/,
    /(?<ticks>`{1,3})(?<code>[^`]{1,2000})\k<ticks>(?!`)/,
    /!?\[(?<text>[^[\]]{0,500})\]\((?<href>[^()\s]{1,2000}(?:\([^()\s]{0,200}\))?)(?:\s+"[^"]{0,200}")?\)/,
    /\*\*(?<strong>[^*\n]{1,1000})\*\*/,
    /(?<![\w_])__(?<strong2>[^_\n]{1,1000})__(?![\w_])/,
    /\*(?<em>[^*\s][^*\n]{0,1000})\*/,
    /(?<![\w_])_(?<em2>[^_\s][^_\n]{0,1000})_(?![\w_])/,
    /~~(?<gone>[^~\n]{1,1000})~~/,
    /(?<url>https?:\/\/[^\s<>()"'`\\]{1,2000})/,
  ]
    .map((pattern) => pattern.source)
    .join("|"),
  "gu",
);

function inline(text, depth = 0) {
  if (depth > 4 || text.length > MOST_INLINE) return [text];
  const made = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    made.push(text.slice(last, found.index));
    last = found.index + found[0].length;
    made.push(piece(found, depth));
  }
  made.push(text.slice(last));
  return made;
}

function piece(found, depth) {
  const { escaped, code, text, href, strong, strong2, em, em2, gone, url } = found.groups;
  if (escaped) return escaped[1];
  if (code !== undefined) return h("code", {}, code);
  if (href !== undefined) return link(href, text || href, found[0], depth);
  if (url) {
    const trailing = /[.,;:!?]+$/.exec(url)?.[0] ?? "";
    return [link(url.slice(0, url.length - trailing.length), null, url, depth), trailing];
  }
  if (strong ?? strong2) return h("strong", {}, inline(strong ?? strong2, depth + 1));
  if (em ?? em2) return h("em", {}, inline(em ?? em2, depth + 1));
  return h("del", {}, inline(gone, depth + 1));
}

function link(href, text, source, depth) {
  if (!SAFE_LINK.test(href)) return source;
  const attributes = { href, rel: "noopener noreferrer nofollow", target: "_blank", title: href };
  return h("a", attributes, text === null ? href : inline(text, depth + 1));
}
