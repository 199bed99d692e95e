// The daemon's API as the page uses it: requests, problems, and streams of events. It keeps no state of its own.

const part = encodeURIComponent;
export const deep = (name) => String(name).split("/").map(part).join("/");
export const sessionPath = (tenant, session) => `/v1/tenants/${part(tenant)}/sessions/${part(session)}`;
export const userPath = (tenant, user) => `/v1/tenants/${part(tenant)}/users/${part(user)}`;
export const inspectorPath = (tenant, session) =>
  `/__inspector/api/tenants/${part(tenant)}/sessions/${part(session)}`;

export const timelinePath = (tenant, session) => `${inspectorPath(tenant, session)}/timeline`;
export const TIMELINE_PAGE = { limit: 20_000 };

const AUTHOR = { "x-memo-actor": "inspector" };

export class Problem extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function problemOf(answer) {
  try {
    const body = await answer.json();
    return new Problem(answer.status, body.code ?? "", body.detail ?? body.title ?? `The daemon answered ${answer.status}.`);
  } catch {
    return new Problem(answer.status, "", `The daemon answered ${answer.status} ${answer.statusText}.`);
  }
}

function address(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

const begun = new Map();

// Send a long request before the view that needs its answer is loaded. The next `ask` for it takes the answer.
export function begin(path, query) {
  const url = address(path, query);
  const answer = fetch(url, { cache: "no-store", credentials: "same-origin" });
  answer.catch(() => {}); // the reader of the answer is told
  begun.set(url, answer);
}

export async function ask(path, { method = "GET", query, body, text, headers, signal } = {}) {
  const url = address(path, query);
  const early = method === "GET" ? begun.get(url) : undefined;
  begun.delete(url);
  const options = { method, signal, headers: { ...headers }, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  } else if (text !== undefined) options.body = text;
  if (method !== "GET" && method !== "HEAD") Object.assign(options.headers, AUTHOR);
  let answer;
  try {
    answer = await (early ?? fetch(url, options));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The daemon does not answer. Is `sandboxd inspect` still running?");
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

export async function getJson(path, options) {
  return (await ask(path, options)).json();
}

export async function getText(path, options) {
  return (await ask(path, options)).text();
}

export const isAbort = (error) => error?.name === "AbortError";

// The kinds of events that the page listens to: an EventSource has no listener for all of them.
export const KINDS = [
  ..."exec tool process context sandbox workspace snapshot fork memo mirror messages consolidation egress".split(" "),
  ..."port gap session trace orchestration".split(" "),
];
const RETRY_MS = 3000;

// Follow server-sent events until the signal aborts. A browser gives up after an error answer; this tries again. A hidden
// tab lets its stream go, because a browser opens only six connections to one host for all tabs together. `onGap` is
// called when events may have been missed.
export function follow(url, kinds, onEvent, signal, { onState = () => {}, onGap = () => {} } = {}) {
  let source = null;
  let timer = 0;
  let wasOpen = false;
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    source = new EventSource(url);
    source.onopen = () => {
      onState(true);
      if (wasOpen) onGap();
      wasOpen = true;
    };
    source.onerror = () => {
      onState(false);
      if (source?.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MS);
    };
    for (const kind of kinds) {
      source.addEventListener(kind, (message) => onEvent(JSON.parse(message.data), kind));
    }
  };
  const change = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", change);
  signal.addEventListener("abort", () => {
    document.removeEventListener("visibilitychange", change);
    close();
  });
  if (!document.hidden) open();
}

// Run `work` soon, once for any number of calls until then.
export function debounced(work, ms, signal) {
  let timer = 0;
  signal?.addEventListener("abort", () => clearTimeout(timer));
  return () => {
    clearTimeout(timer);
    if (!signal?.aborted) timer = setTimeout(work, ms);
  };
}
