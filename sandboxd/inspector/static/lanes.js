// What the timeline's kinds and lanes are called, their order and their colours. Values only.

export const LANES = [
  ["user", "User", "--lane-user"],
  ["assistant", "Assistant", "--lane-assistant"],
  ["toolResult", "Tool results", "--lane-result"],
  ["commands", "Commands", "--lane-commands"],
  ["memory", "Memory", "--lane-memory"],
  ["sandbox", "Sandbox", "--lane-sandbox"],
  ["network", "Network", "--lane-network"],
  ["trace", "Trace", "--lane-trace"],
];

const KINDS = {
  message: "message",
  exec: "command",
  tool: "tool call",
  process: "process",
  context: "context",
  memo: "memory write",
  mirror: "refresh",
  messages: "messages",
  sandbox: "sandbox",
  egress: "egress",
  consolidation: "consolidation",
  trace: "trace",
};

export const kindName = (kind) => KINDS[kind] ?? kind;
// What one message in a lane is called.
export const speakerName = (lane) => ({ user: "user", assistant: "assistant", toolResult: "tool result" })[lane] ?? lane;
export const laneOf = (lane) => LANES.find(([name]) => name === lane) ?? [lane, lane, "--lane-trace"];
export const laneClass = (lane) => `lane-${LANES.some(([name]) => name === lane) ? lane : "trace"}`;
