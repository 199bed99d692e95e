// The daemon's API as the page uses it: requests, problems, and streams of events. It keeps no state of its own.

const part = encodeURIComponent;
export const deep = (name) => String(name).split("/").map(part).join("/");
export const sessionPath = (tenant, session) => `/v1/tenants/${part(tenant)}/sessions/${part(session)}`;
export const userPath = (tenant, user) => `/v1/tenants/${part(tenant)}/users/${part(user)}`;
export const inspectorPath = (tenant, session) =>
  `/__inspector/api/tenants/${part(tenant)}/sessions/${part(session)}`;

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

export async function ask(path, { method = "GET", query, body, text, headers, signal } = {}) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const url = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  const options = { method, signal, headers: { ...headers }, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  } else if (text !== undefined) options.body = text;
  if (method !== "GET" && method !== "HEAD") Object.assign(options.headers, AUTHOR);
  let answer;
  try {
    answer = await fetch(url, options);
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

// Follow server-sent events until the signal aborts. A browser gives up after an error answer; this tries again.
export function follow(url, kinds, onEvent, signal, onState = () => {}) {
  let source = null;
  let timer = 0;
  const open = () => {
    source = new EventSource(url);
    source.onopen = () => onState(true);
    source.onerror = () => {
      onState(false);
      if (source.readyState !== EventSource.CLOSED) return;
      clearTimeout(timer);
      timer = setTimeout(open, RETRY_MS);
    };
    for (const kind of kinds) {
      source.addEventListener(kind, (message) => onEvent(JSON.parse(message.data), kind));
    }
  };
  open();
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    source.close();
  });
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
