// The workspace of a session: a tree whose directories are read when they are opened, and a view of one file. A file is
// read in part first, and never shown as anything but text, a dump of its bytes, or a picture of a harmless type.

import { ask, getJson, isAbort, sessionPath } from "./api.js";
import { button, empty, failure, fill, h, loading, longText } from "./dom.js";
import { go, toSession } from "./router.js";
import { bytes, count, moment } from "./text.js";

const ROOT = "/workspace";
const PAGE = 500;
const FIRST_BYTES = 262_144;
const DUMP_BYTES = 4096;
const MOST_PICTURE = 8_388_608;
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };

export function filesView({ tenant, session, route, signal }) {
  const files = `${sessionPath(tenant, session)}/files`;
  const tree = h("nav", { class: "tree files", "aria-label": "Workspace" });
  const pane = h("section", { class: "file", "aria-label": "File" });
  const element = h("div", { class: "side-by-side" }, tree, pane);
  let chosen = route.query.get("path");
  let picture = null;
  signal.addEventListener("abort", () => picture && URL.revokeObjectURL(picture));

  async function openRoot() {
    fill(tree, loading("the workspace"));
    try {
      const list = await directory(ROOT);
      fill(tree, h("h2", {}, ROOT), list);
    } catch (error) {
      if (isAbort(error)) return;
      fill(tree, error.status === 404 ? empty("No sandbox", "Files are in a sandbox. Create one: ", h("code", {}, `sandboxd create ${session} --user USER`)) : failure(error, openRoot));
    }
  }

  async function directory(path, after) {
    const page = await getJson(files, { query: { path, list: true, limit: PAGE, after }, signal });
    const list = h("ul", {}, page.items.map(entryItem));
    if (!page.items.length && !after) list.append(h("li", { class: "muted" }, "Empty"));
    if (page.next) {
      const more = h("li", {}, button("Show more", async () => more.replaceWith(...(await directory(path, page.next)).children), { class: "quiet" }));
      list.append(more);
    }
    return list;
  }

  function entryItem(entry) {
    const name = entry.path.split("/").pop();
    if (entry.type === "directory") return directoryItem(entry, name);
    const link = h(
      "a",
      { href: toSession(tenant, session, ["files"], { path: entry.path }), "aria-current": entry.path === chosen ? "page" : null, dataset: { path: entry.path } },
      h("span", { class: `tree-name ${entry.type}` }, name),
      h("span", { class: "muted" }, entry.type === "symlink" ? "link" : bytes(entry.size_bytes)),
    );
    return h("li", {}, link);
  }

  function directoryItem(entry, name) {
    const place = h("div", { class: "children" });
    const details = h("details", { dataset: { path: entry.path } }, h("summary", {}, `${name}/`), place);
    details.addEventListener("toggle", async () => {
      if (!details.open || place.childElementCount) return;
      fill(place, loading(name));
      try {
        fill(place, await directory(entry.path));
      } catch (error) {
        if (!isAbort(error)) fill(place, h("p", { class: "bad-text" }, error.message));
      }
    });
    if (chosen?.startsWith(`${entry.path}/`)) details.open = true;
    return h("li", {}, details);
  }

  async function showFile(path) {
    for (const link of tree.querySelectorAll("a")) {
      if (link.dataset.path === path) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (path === null) return void fill(pane, empty("No file is open", "Choose one in the tree. Directories open with a click."));
    fill(pane, loading(path));
    try {
      const info = await getJson(files, { query: { path, stat: true }, signal });
      const head = h("header", { class: "document-head" }, h("h2", {}, path), h("span", { class: "muted" }, `${bytes(info.size_bytes)}, ${mode(info.mode)}${info.modified_at ? `, changed ${moment(info.modified_at)}` : ""}`));
      if (info.type === "directory") return void fill(pane, head, await directory(path));
      if (info.type !== "file") return void fill(pane, head, empty("This is not a file", "Devices, sockets and the like have no text."));
      fill(pane, head, await content(path, info));
    } catch (error) {
      if (!isAbort(error)) fill(pane, failure(error, () => showFile(path)));
    }
  }

  async function read(path, most) {
    const headers = most === undefined ? {} : { range: `bytes=0-${most - 1}` };
    return new Uint8Array(await (await ask(files, { query: { path }, headers, signal })).arrayBuffer());
  }

  async function content(path, info) {
    if (!info.size_bytes) return h("p", { class: "muted" }, "The file is empty.");
    const type = PICTURES[path.split(".").pop().toLowerCase()];
    if (type && info.size_bytes <= MOST_PICTURE) return pictureOf(path, type);
    const isPart = info.size_bytes > FIRST_BYTES;
    const data = await read(path, isPart ? FIRST_BYTES : undefined);
    if (data.subarray(0, DUMP_BYTES).includes(0)) {
      return [h("p", { class: "muted" }, `Not text: the first ${count(Math.min(DUMP_BYTES, data.length))} bytes.`), h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "Bytes" }, dump(data.subarray(0, DUMP_BYTES)))];
    }
    const place = h("div", {}, longText(decode(data), { className: "code file-text", label: path }));
    if (!isPart) return place;
    const whole = button(`Load the whole file (${bytes(info.size_bytes)})`, async () => {
      try {
        fill(place, longText(decode(await read(path)), { className: "code file-text", label: path }));
        whole.remove();
      } catch (error) {
        if (!isAbort(error)) fill(place, failure(error));
      }
    });
    return [h("p", { class: "muted" }, `The first ${bytes(FIRST_BYTES)}.`), place, whole];
  }

  async function pictureOf(path, type) {
    if (picture) URL.revokeObjectURL(picture);
    picture = URL.createObjectURL(new Blob([await read(path)], { type }));
    return h("img", { class: "file-picture", src: picture, alt: `The picture ${path}` });
  }

  openRoot();
  showFile(chosen);
  return {
    element,
    update(now) {
      chosen = now.query.get("path");
      showFile(chosen);
    },
    keys: { r: () => (openRoot(), showFile(chosen)), u: () => chosen && go(toSession(tenant, session, ["files"], { path: chosen.replace(/\/[^/]*$/, "") || ROOT })) },
  };
}

const decode = (data) => new TextDecoder("utf-8").decode(data);
const mode = (bits) => (bits & 0o777).toString(8).padStart(3, "0");

function dump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
