// The timeline as a picture: one lane for each kind of thing, time or order from left to right. It zooms and pans, marks
// what is selected and what the list shows, and draws only when something changed.

import { button, h, setText } from "./dom.js";
import { LaneRange } from "./lane_range.js";
import { LANES, laneOf } from "./lanes.js";
import { clock, duration, shorten } from "./text.js";

const LANE = 22;
const AXIS = 22;
const LEAST_MARK = 3;

export class LanePicture {
  constructor({ onSelect }) {
    this.#onSelect = onSelect;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": "Timeline picture. Left and right arrows move between entries, plus and minus zoom, 0 shows everything.",
      "aria-describedby": "picture-note",
    });
    this.#note = h("p", { class: "hidden", id: "picture-note", "aria-live": "polite" });
    this.#tip = h("div", { class: "tip", hidden: true });
    this.#scale = button("By time", () => this.changeScale(), { class: "quiet", title: "Keep the gaps of time, or space entries evenly" });
    const tools = h(
      "div",
      { class: "picture-tools" },
      this.#scale,
      button("−", () => this.zoom(0.5), { class: "quiet", "aria-label": "Zoom out" }),
      button("+", () => this.zoom(2), { class: "quiet", "aria-label": "Zoom in" }),
      button("All", () => this.showAll(), { class: "quiet", "aria-label": "All: show everything" }),
    );
    this.element = h("div", { class: "picture" }, tools, h("div", { class: "picture-area" }, this.canvas, this.#tip), this.#note);
    this.#listen();
  }

  #onSelect;
  #note;
  #tip;
  #scale;
  #range = new LaneRange();
  #lanes = [];
  #colours = new Map();
  #selected = -1;
  #shown = [0, 0];
  #frame = 0;
  #watch;
  // The lanes with their marks, drawn once for each range: scrolling the list moves only what lies below and above them.
  #marks = document.createElement("canvas");
  #isStale = true;
  #height = 0;

  close() {
    this.#watch.disconnect();
    window.removeEventListener("themechange", this.#recolour);
    cancelAnimationFrame(this.#frame);
  }

  setEntries(entries) {
    this.#range.setEntries(entries);
    this.#scale.setAttribute("aria-pressed", this.#range.isByTime === true);
    const used = new Set(entries.map((entry) => entry.lane));
    this.#lanes = LANES.filter(([name]) => used.has(name)).map(([name]) => name);
    for (const name of used) if (!this.#lanes.includes(name)) this.#lanes.push(name);
    this.#height = Math.max(1, this.#lanes.length) * LANE + AXIS;
    this.canvas.style.height = `${this.#height}px`;
    this.#redraw();
  }

  changeScale() {
    this.#range.isByTime = !this.#range.isByTime;
    this.#range.setEntries(this.#range.entries);
    this.#scale.setAttribute("aria-pressed", this.#range.isByTime === true);
    this.showAll();
  }

  select(index) {
    this.#selected = index;
    const entry = this.#range.entries[index];
    if (entry) {
      setText(this.#note, `Entry ${index + 1} of ${this.#range.entries.length}: ${entry.title}`);
      if (this.#range.reveal(this.#range.places[index])) this.#isStale = true;
    }
    this.draw();
  }

  // Where the list is: the first and the last index that it shows.
  mark(first, last) {
    this.#shown = [first, last];
    this.draw();
  }

  showAll() {
    this.#view(0, 1);
  }

  zoom(factor, centre) {
    this.#range.zoom(factor, centre ?? (this.#selected >= 0 ? this.#range.places[this.#selected] : undefined));
    this.#redraw();
  }

  #view(start, end) {
    this.#range.view(start, end);
    this.#redraw();
  }

  #redraw() {
    this.#isStale = true;
    this.draw();
  }

  draw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#paint();
    });
  }

  #recolour = () => {
    this.#colours.clear();
    this.#redraw();
  };

  // Custom properties hold light-dark(); only a computed colour says which of the two applies.
  #colour(name) {
    if (!this.#colours.has(name)) {
      this.canvas.style.color = `var(${name})`;
      this.#colours.set(name, getComputedStyle(this.canvas).color);
    }
    return this.#colours.get(name);
  }

  #paint() {
    const { canvas } = this;
    const [width, height] = [this.#range.width, this.#height];
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      this.#isStale = true;
    }
    const context = prepared(canvas, ratio, width, height);
    if (this.#isStale) this.#paintAll(ratio, width, height);
    this.#paintShown(context, height);
    context.drawImage(this.#marks, 0, 0, width, height);
    this.#paintSelected(context, height);
  }

  #paintAll(ratio, width, height) {
    this.#isStale = false;
    [this.#marks.width, this.#marks.height] = [this.canvas.width, this.canvas.height];
    const context = prepared(this.#marks, ratio, width, height);
    this.#paintLanes(context, width);
    this.#paintMarks(context);
    this.#paintAxis(context, width, height);
  }

  #paintShown(context, height) {
    const [first, last] = this.#shown;
    const { entries, places, gutter } = this.#range;
    if (!entries.length || last <= first) return;
    const from = Math.max(gutter, this.#range.x(places[first] ?? 0));
    const until = this.#range.x(places[Math.min(last, places.length) - 1] ?? 1);
    if (until < from) return;
    context.fillStyle = this.#colour("--picture-shown");
    context.fillRect(from - 2, 0, Math.max(4, until - from + 4), height - AXIS);
  }

  #paintLanes(context, width) {
    context.fillStyle = this.#colour("--line");
    this.#lanes.forEach((_, index) => context.fillRect(this.#range.gutter, (index + 1) * LANE - 0.5, width, 0.5));
  }

  #paintMarks(context) {
    const { entries, places, gutter: left, width, start, end, scale, shownMs } = this.#range;
    const perMs = shownMs ? (scale * (end - start)) / shownMs : 0;
    const rows = new Map(this.#lanes.map((lane, index) => [lane, { y: index * LANE, colour: this.#colour(laneOf(lane)[2]) }]));
    const failed = [];
    const [from, until] = this.#range.bounds();
    let colour = null;
    for (let index = from; index < until; index += 1) {
      const entry = entries[index];
      const row = rows.get(entry.lane);
      // What happened is told when it is over, so a mark ends at its place.
      const last = left + (places[index] - start) * scale + 1;
      const first = Math.max(0, Math.min(last - LEAST_MARK, last - (entry.duration_ms ?? 0) * perMs));
      const length = Math.min(width, last) - first;
      if (entry.ok === false) failed.push([first, row.y, length]);
      else {
        if (colour !== row.colour) context.fillStyle = colour = row.colour;
        context.fillRect(first, row.y + 6, length, LANE - 12);
      }
    }
    // Failures last and taller, so that their number never hides them, and so that they differ by more than colour.
    context.fillStyle = this.#colour("--bad");
    for (const [x, y, length] of failed) context.fillRect(x, y + 2, length, LANE - 4);
    // What begins left of the range is cut at the names.
    context.clearRect(0, 0, left - 2, this.#height);
    this.#paintNames(context);
  }

  #paintNames(context) {
    context.fillStyle = this.#colour("--muted");
    context.textAlign = "left";
    this.#lanes.forEach((lane, index) => context.fillText(laneOf(lane)[1], 0, index * LANE + LANE / 2, this.#range.gutter - 8));
  }

  #paintAxis(context, width, height) {
    context.fillStyle = this.#colour("--muted");
    context.textAlign = "center";
    const ticks = Math.max(2, Math.floor((width - this.#range.gutter) / 120));
    for (let tick = 0; tick <= ticks; tick += 1) {
      const place = this.#range.start + ((this.#range.end - this.#range.start) * tick) / ticks;
      const x = this.#range.x(place);
      context.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      context.fillText(this.#range.tick(place), x, height - AXIS / 2 + 2);
    }
  }

  #paintSelected(context, height) {
    if (this.#selected < 0) return;
    const x = Math.round(this.#range.x(this.#range.places[this.#selected]));
    if (x < this.#range.gutter - 2) return;
    context.fillStyle = this.#colour("--text");
    context.fillRect(x - 0.5, 0, 1.5, height - AXIS);
    context.beginPath();
    context.moveTo(x - 5, 0);
    context.lineTo(x + 6, 0);
    context.lineTo(x + 0.5, 6);
    context.fill();
  }

  #listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, start: this.#range.start, end: this.#range.end, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held) {
        const moved = ((event.offsetX - held.x) / (this.#range.width - this.#range.gutter)) * (held.end - held.start);
        held.moved ||= Math.abs(event.offsetX - held.x) > 4;
        if (held.moved) this.#view(held.start - moved, held.end - moved);
      } else this.#hover(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      const wasMoved = held?.moved;
      held = null;
      if (wasMoved) return;
      const index = this.#at(event);
      if (index >= 0) this.#onSelect(index);
    });
    canvas.addEventListener("pointercancel", () => (held = null));
    canvas.addEventListener("pointerleave", () => (this.#tip.hidden = true));
    canvas.addEventListener("dblclick", (event) => this.zoom(4, this.#range.placeAt(event.offsetX)));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const { start, end } = this.#range;
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          const moved = (event.deltaX || event.deltaY) / this.#range.scale;
          this.#view(start + moved, end + moved);
        } else this.zoom(Math.exp(-event.deltaY / 300), this.#range.placeAt(event.offsetX));
      },
      { passive: false },
    );
    this.#watch = new ResizeObserver(() => {
      this.#range.width = canvas.clientWidth;
      this.#redraw();
    });
    this.#watch.observe(canvas);
    window.addEventListener("themechange", this.#recolour);
  }

  #at(event) {
    return this.#range.nearest(event.offsetX, this.#lanes[Math.floor(event.offsetY / LANE)]);
  }

  #hover(event) {
    const index = this.#at(event);
    this.canvas.classList.toggle("pointing", index >= 0);
    this.#tip.hidden = index < 0;
    if (index < 0) return;
    const entry = this.#range.entries[index];
    const took = entry.duration_ms === undefined ? "" : ` · ${duration(entry.duration_ms)}`;
    setText(this.#tip, `${entry.at ? clock(entry.at) : ""}${took} · ${shorten(entry.title, 120)}`);
    const isRight = event.offsetX > this.#range.width / 2;
    this.#tip.style.left = isRight ? "auto" : `${event.offsetX + 12}px`;
    this.#tip.style.right = isRight ? `${this.#range.width - event.offsetX + 12}px` : "auto";
    this.#tip.style.top = `${event.offsetY + 14}px`;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { start, end } = this.#range;
    const half = (end - start) / 2;
    const moves = {
      "+": () => this.zoom(2),
      "=": () => this.zoom(2),
      "-": () => this.zoom(0.5),
      0: () => this.showAll(),
      ArrowRight: () => this.#step(1),
      ArrowLeft: () => this.#step(-1),
      PageDown: () => this.#view(start + half, end + half),
      PageUp: () => this.#view(start - half, end - half),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  }

  #step(by) {
    const next = Math.max(0, Math.min(this.#range.entries.length - 1, this.#selected + by));
    if (this.#range.entries.length) this.#onSelect(next);
  }
}

function prepared(canvas, ratio, width, height) {
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}
