// What the stored orchestration says about a session's agents: who there is, who started whom, who wrote to whom. Programs
// store events of their own shapes, so this looks for the usual names and leaves out what it cannot tell. Pure.

const first = (object, ...names) => {
  for (const name of names) if (typeof object?.[name] === "string" && object[name]) return object[name];
  return null;
};

const agentOf = (event) =>
  first(event, "agentId", "agent_id", "childAgentId", "subagentId") ?? (typeof event.agent === "string" ? event.agent : first(event.agent, "id", "agentId"));
const parentOf = (event) => first(event, "parentAgentId", "parent_agent_id", "parentId", "parent_id", "parent", "spawnedBy") ?? first(event.agent, "parentId", "parentAgentId");
const senderOf = (event) => first(event, "from", "fromAgentId", "from_agent_id", "senderId", "sender", "sourceAgentId");
const receiverOf = (event) => first(event, "to", "toAgentId", "to_agent_id", "receiverId", "receiver", "recipient", "targetAgentId");

export const typeOf = (event) => first(event, "type", "kind", "event") ?? "event";
export const timeOf = (event) => first(event, "occurredAt", "occurred_at", "timestamp", "at", "createdAt", "created_at");

const MOST_AGENTS = 200;

// Returns {agents: Map of id to agent, messages: [{from, to, count}]}.
export function orchestrationModel(state, listed = []) {
  const agents = new Map();
  const messages = new Map();
  const know = (id) => {
    if (typeof id !== "string" || (!agents.has(id) && agents.size >= MOST_AGENTS)) return null;
    if (!agents.has(id)) agents.set(id, { id, name: id, role: null, status: null, parent: null, events: 0 });
    return agents.get(id);
  };
  for (const agent of agentsOfSnapshot(state?.snapshot)) learn(know(agent.id), agent);
  for (const event of state?.events ?? []) readEvent(event, know, messages);
  for (const id of listed) know(id);
  for (const agent of agents.values()) {
    if (agent.parent !== null && (!agents.has(agent.parent) || agent.parent === agent.id)) agent.parent = null;
  }
  return { agents, messages: [...messages.values()] };
}

function agentsOfSnapshot(snapshot) {
  const found = snapshot?.agents ?? snapshot?.subagents ?? snapshot?.state?.agents;
  if (Array.isArray(found)) return found.map((agent) => (typeof agent === "string" ? { id: agent } : { ...agent, id: agent?.id ?? agent?.agentId })).filter(({ id }) => id);
  return Object.entries(found ?? {}).map(([id, agent]) => ({ ...(typeof agent === "object" ? agent : {}), id }));
}

function learn(agent, source) {
  if (!agent) return;
  agent.name = first(source, "displayName", "display_name", "name") ?? agent.name;
  agent.role = first(source, "role", "agentType") ?? agent.role;
  agent.status = first(source, "status", "state", "finalStatus") ?? agent.status;
  agent.parent = parentOf(source) ?? agent.parent;
}

const STATUS_OF = [
  [/spawn|start|created/, "running"],
  [/complete|finished|done/, "completed"],
  [/fail|error/, "failed"],
  [/closed|stopped|terminated/, "closed"],
];

function readEvent(event, know, messages) {
  if (!event || typeof event !== "object") return;
  const agent = know(agentOf(event));
  const type = typeOf(event);
  if (agent) {
    agent.events += 1;
    learn(agent, { ...event, ...(typeof event.agent === "object" ? event.agent : {}), parent: parentOf(event) });
    if (!first(event, "status", "finalStatus")) {
      const known = STATUS_OF.find(([pattern]) => pattern.test(type));
      if (known) [, agent.status] = known;
    }
  }
  const [from, to] = [senderOf(event), receiverOf(event) ?? (senderOf(event) && agentOf(event))];
  if (!from || !to || from === to || !know(from) || !know(to)) return;
  const key = `${from}\n${to}`;
  if (!messages.has(key)) messages.set(key, { from, to, count: 0 });
  messages.get(key).count += 1;
}

// Rows of the graph: agents that nobody started first, then whom they started. A cycle ends where it began.
export function layers(agents) {
  const depth = new Map();
  const depthOf = (agent, seen) => {
    if (depth.has(agent.id)) return depth.get(agent.id);
    if (agent.parent === null || seen.has(agent.id)) return 0;
    seen.add(agent.id);
    const parent = agents.get(agent.parent);
    const found = parent ? depthOf(parent, seen) + 1 : 0;
    depth.set(agent.id, found);
    return found;
  };
  const rows = [];
  for (const agent of agents.values()) {
    const row = depthOf(agent, new Set());
    while (rows.length <= row) rows.push([]);
    rows[row].push(agent);
  }
  return rows.filter((row) => row.length);
}
