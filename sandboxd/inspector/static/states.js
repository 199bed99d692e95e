// What the states of a sandbox and the failures of the daemon mean, in words.

import { badge } from "./dom.js";
import { shorten } from "./text.js";

const TONES = { ready: "ok", starting: "info", creating: "info", paused: "warn", hibernated: "plain", gone: "bad" };

export const stateBadge = (state) => badge(state ?? "no sandbox", TONES[state] ?? "plain");

const CAUSES = {
  exited: "its runner exited",
  oom: "it ran out of memory",
  killed: "it was killed from outside",
  engine: "the engine lost it",
  mirror: "its memory could no longer be shown",
  idle: "it was idle",
  lifetime: "its time was over",
  asked: "on request",
};

export const causeText = (cause) => CAUSES[cause] ?? cause;

// One sentence about an event that reports a failure.
export function failureText(event) {
  const limits = [].concat(event.limits_hit ?? []).join(", ");
  if (event.kind === "sandbox") return `The sandbox is gone: ${causeText(event.cause) ?? event.reason ?? "no cause is known"}`;
  if (event.kind === "egress") {
    return `${event.decision === "denied" ? "Refused" : "Failed"}: a connection to ${event.host}:${event.port}${event.reason ? ` (${event.reason})` : ""}`;
  }
  if (event.kind === "consolidation") return `Consolidation failed${event.reason ? `: ${event.reason}` : ""}`;
  if (limits) return `A limit was hit (${limits})${event.command ? `: ${shorten(event.command, 160)}` : ""}`;
  return `${event.kind} failed`;
}
