// The frame of the page: which view the address asks for, the theme, the keys, and whether the daemon answers.

import { TIMELINE_PAGE, begin, timelinePath } from "./api.js";
import { h, setText } from "./dom.js";
import { Keys, showHelp } from "./keys.js";
import { go, read, to } from "./router.js";
import { liveStats } from "./stats.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const search = document.getElementById("find-text");
let current = null;
let steps = 0;

// A view is loaded when it is first shown, so that the first one need not wait for all of them.
function viewOf({ parts }) {
  if (parts.length === 0) return { key: "overview", load: async () => (await import("./overview_view.js")).overviewView };
  if (parts[0] === "sessions") return { key: "sessions", load: async () => (await import("./sessions_view.js")).sessionsView };
  if (parts[0] === "search") return { key: "search", load: async () => (await import("./search_view.js")).searchView };
  if (parts[0] === "tenants" && parts[2] === "sessions" && parts.length >= 4) {
    return { key: `session ${parts[1]} ${parts[3]}`, load: async () => (await import("./session_view.js")).sessionView };
  }
  if (parts[0] === "tenants" && parts[2] === "users" && parts.length >= 4) {
    return { key: `user ${parts[1]} ${parts[3]}`, load: async () => (await import("./user_view.js")).userView };
  }
  return { key: "unknown", load: async () => unknownView };
}

function unknownView() {
  const element = h(
    "div",
    { class: "page" },
    h("h1", {}, "There is no such page"),
    h("p", {}, "The address may be from another version. ", h("a", { href: "#/" }, "Go to the overview"), "."),
  );
  return { element, title: "Not found" };
}

async function show() {
  const step = (steps += 1);
  const route = read();
  const { key, load } = viewOf(route);
  for (const link of document.querySelectorAll("[data-nav]")) {
    const isHere = link.dataset.nav === key;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (current?.key === key && current.view.update) {
    current.view.update(route);
  } else {
    const make = await load();
    if (step !== steps) return;
    current?.stop.abort();
    const stop = new AbortController();
    current = { key, stop, view: make({ route, signal: stop.signal }) };
    main.replaceChildren(current.view.element);
    window.scrollTo(0, 0);
  }
  const { title } = current.view;
  document.title = title ? `${title} · sandboxd inspector` : "sandboxd inspector";
}

const THEMES = ["auto", "light", "dark"];
const SHOWN = { auto: "◐", light: "☀", dark: "☾" };

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  setText(button, SHOWN[theme]);
  button.setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}. Change it`);
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // A browser may refuse to keep anything; the theme then lasts until the page is left.
  }
  window.dispatchEvent(new Event("themechange"));
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
const focusSearch = () => {
  search.focus();
  search.select();
};

const keys = new Keys({
  "?": () => showHelp(keys),
  "/": focusSearch,
  t: nextTheme,
  "g o": () => go("#/"),
  "g s": () => go("#/sessions"),
  view: (key) => current?.view.keys?.[key],
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("themechange")));
setTheme(storedTheme());
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help").addEventListener("click", () => showHelp(keys));
document.getElementById("skip").addEventListener("click", () => main.focus());
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  if (search.value.trim()) go(to(["search"], { q: search.value.trim() }));
});
liveStats.onState((isOpen) => {
  setText(live, isOpen ? "live" : "not connected");
  live.classList.toggle("on", isOpen);
});
const { parts: first } = read();
if (first[0] === "tenants" && first[2] === "sessions" && (first[4] ?? "timeline") === "timeline") {
  begin(timelinePath(first[1], first[3]), TIMELINE_PAGE);
}
window.addEventListener("hashchange", show);
show();
