// Small plots made of SVG elements: a line over time, and bars for turns. They draw what they are given and keep nothing.

import { fill, h, setText, svg } from "./dom.js";
import { many, rough } from "./text.js";

const HEIGHT = 72;

// A line of values over the last minutes. `update(points, max)` takes {at, value}; null values are gaps.
export function linePlot({ title, show, className, compact = false }) {
  const height = compact ? 24 : HEIGHT;
  const value = h("span", { class: "plot-value" }, "–");
  const most = h("span", { class: "plot-most" });
  const picture = svg("svg", { class: "plot-picture", height, width: "100%", role: "img", "aria-label": title });
  const element = compact
    ? h("span", { class: `spark ${className}` }, picture)
    : h("figure", { class: `plot ${className}` }, h("figcaption", {}, h("span", {}, title), value), picture, most);
  const update = (points, max) => {
    const width = picture.clientWidth || 240;
    const known = points.filter((point) => Number.isFinite(point.value));
    const latest = known.at(-1)?.value;
    const top = max ?? Math.max(...known.map((point) => point.value), 1e-9);
    const highest = known.length ? Math.max(...known.map((point) => point.value)) : undefined;
    const text = known.length ? `${title}: ${show(latest)}, at most ${show(highest)}` : `${title}: no values yet`;
    picture.setAttribute("aria-label", text);
    setText(value, known.length ? show(latest) : "–");
    setText(most, known.length ? `at most ${show(highest)} in this window` : "waiting for the first values");
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    fill(picture, !compact && grid(width, height), known.length > 1 && curve(known, width, height, top));
  };
  return { element, update };
}

const grid = (width, height) =>
  [0.25, 0.5, 0.75].map((part) =>
    svg("line", { class: "grid", x1: 0, x2: width, y1: Math.round(height * part) + 0.5, y2: Math.round(height * part) + 0.5 }),
  );

function curve(points, width, height, top) {
  const start = points[0].at;
  const span = Math.max(1, points.at(-1).at - start);
  const places = points.map(({ at, value }) => {
    const x = ((at - start) / span) * width;
    const y = height - 1.5 - Math.min(1, Math.max(0, value / top)) * (height - 4);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return [
    svg("polygon", { class: "area", points: `0,${height} ${places.join(" ")} ${width},${height}` }),
    svg("polyline", { class: "line", points: places.join(" ") }),
  ];
}

const MOST_BARS = 240;

// Tokens of each turn: input below, output above. Many turns are added up in groups, so that each bar can be seen.
export function turnPlot(turns, onSelect) {
  if (!turns.length) return null;
  const size = Math.ceil(turns.length / MOST_BARS);
  const groups = [];
  for (let at = 0; at < turns.length; at += size) groups.push(turns.slice(at, at + size));
  const sum = (group, field) => group.reduce((total, turn) => total + (turn[field] ?? 0), 0);
  const top = Math.max(...groups.map((group) => sum(group, "input") + sum(group, "output")), 1);
  const width = 1000;
  const height = 64;
  const step = width / Math.max(groups.length, 12);
  const bars = groups.map((group, index) => {
    const input = (sum(group, "input") / top) * (height - 4);
    const output = (sum(group, "output") / top) * (height - 4);
    const first = index * size + 1;
    const name = group.length === 1 ? `Turn ${first}` : `Turns ${first} to ${first + group.length - 1}`;
    const bar = svg(
      "g",
      { class: "bar", onclick: () => onSelect(group[0]) },
      svg("title", {}, `${name}: ${rough(sum(group, "input"))} tokens in, ${rough(sum(group, "output"))} out`),
      svg("rect", { class: "hit", x: index * step, y: 0, width: step, height }),
      svg("rect", { class: "input", x: index * step + step * 0.12, width: step * 0.76, y: height - input, height: input }),
      svg("rect", { class: "output", x: index * step + step * 0.12, width: step * 0.76, y: height - input - output, height: output }),
    );
    return bar;
  });
  const total = `${rough(sum(turns, "input"))} tokens in, ${rough(sum(turns, "output"))} out, in ${many(turns.length, "turn")}`;
  const attributes = { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", width: "100%", height };
  return h(
    "figure",
    { class: "plot turns" },
    h(
      "figcaption",
      {},
      h("span", {}, "Tokens per turn"),
      h("span", { class: "legend" }, h("i", { class: "swatch input" }), "in ", h("i", { class: "swatch output" }), "out"),
    ),
    svg("svg", { ...attributes, class: "plot-picture", role: "img", "aria-label": `Tokens per turn: ${total}` }, bars),
    h("span", { class: "plot-most" }, total),
  );
}
