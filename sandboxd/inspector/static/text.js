// Text of agents, made safe to look at, and the words for sizes and times. Everything here is pure.

// Controls that change the order of what follows, that are invisible, or that a font draws as nothing. Joiners
// (U+200C, U+200D) stay: scripts and emoji need them.
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|\p{Cs}|[\u{e0000}-\u{e007f}]/gu;

// Show controls instead of obeying them: a right-to-left override must not make a path read like another one.
export function visible(text) {
  return String(text).replace(HIDDEN, (found) => {
    const code = found.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

export function shorten(text, most) {
  const flat = String(text).slice(0, most * 4).replace(/\s+/g, " ").trim();
  return flat.length > most ? `${flat.slice(0, most - 1)}…` : flat;
}

export function bytes(size) {
  if (size === null || size === undefined || !Number.isFinite(size)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  let value = size;
  while (value >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${index === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[index]}`;
}

const GROUPED = new Intl.NumberFormat("en");
const ROUGH = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (Number.isFinite(value) ? GROUPED.format(value) : "–");
export const rough = (value) => (Number.isFinite(value) ? ROUGH.format(value) : "–");
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function ago(at, now = Date.now()) {
  const ms = now - new Date(at).getTime();
  if (!Number.isFinite(ms)) return "at an unknown time";
  if (ms < 5000) return "just now";
  const steps = [
    [60, 1, "s"],
    [3600, 60, "min"],
    [172_800, 3600, "h"],
    [Infinity, 86_400, "days"],
  ];
  const seconds = ms / 1000;
  const [, size, unit] = steps.find(([limit]) => seconds < limit);
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MOMENT = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

const formatted = (format, at) => {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "–" : format.format(date);
};
export const clock = (at) => formatted(CLOCK, at);
export const moment = (at) => formatted(MOMENT, at);

// "limits_hit" and "limitsHit" → "Limits hit"
export function label(name) {
  const words = String(name)
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .replace(/[_-]+/g, " ")
    .toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}
