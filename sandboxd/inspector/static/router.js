// Addresses of the page: the fragment is a path of encoded segments and a query. Everything that can be looked at has one.

export function read(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s, 2);
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function to(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const path = `#/${parts.map(encodeURIComponent).join("/")}`;
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const toSession = (tenant, session, tab = [], query) => to(["tenants", tenant, "sessions", session, ...tab], query);
export const toDocument = (tenant, session, scope, name, query) =>
  toSession(tenant, session, ["memory", scope, ...name.split("/")], query);

export const go = (address) => {
  location.hash = address;
};

// Change the address without a step in the history and without a new view, so that it names what is shown now.
export function rename(address) {
  if (location.hash !== address) history.replaceState(null, "", address);
}
