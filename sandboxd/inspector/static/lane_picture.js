// The timeline as a picture: one lane for each kind of thing, time or order from left to right. It zooms and pans, marks
// what is selected and what the list shows, and draws only when something changed.

import { button, h, setText } from "./dom.js";
import { LANES, laneOf } from "./lanes.js";
import { clock, duration, moment, shorten } from "./text.js";

const LANE = 22;
const AXIS = 22;
const GUTTER = 96;
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
    this.#scale = button("By time", () => this.setScale(this.#byTime ? "order" : "time"), { class: "quiet", title: "Space entries by time, or evenly" });
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
  #entries = [];
  #lanes = [];
  #places = new Float64Array(0);
  #colours = new Map();
  #byTime = true;
  #start = 0;
  #end = 1;
  #selected = -1;
  #shown = [0, 0];
  #frame = 0;
  #watch;
  // The lanes with their marks, drawn once for each range: scrolling the list moves only what lies below and above them.
  #marks = document.createElement("canvas");
  #isStale = true;
  #width = 0;
  #height = 0;

  close() {
    this.#watch.disconnect();
    window.removeEventListener("themechange", this.#recolour);
    cancelAnimationFrame(this.#frame);
  }

  setEntries(entries) {
    const wasAll = this.#start === 0 && this.#end === 1;
    this.#entries = entries;
    const used = new Set(entries.map((entry) => entry.lane));
    this.#lanes = LANES.filter(([name]) => used.has(name)).map(([name]) => name);
    for (const name of used) if (!this.#lanes.includes(name)) this.#lanes.push(name);
    this.#place();
    if (wasAll) [this.#start, this.#end] = [0, 1];
    this.#height = Math.max(1, this.#lanes.length) * LANE + AXIS;
    this.canvas.style.height = `${this.#height}px`;
    this.#isStale = true;
    this.draw();
  }

  // Each entry's place from 0 to 1.
  #place() {
    const times = this.#entries.map((entry) => Date.parse(entry.at));
    const first = times.find(Number.isFinite) ?? 0;
    const last = times.findLast(Number.isFinite) ?? first;
    const span = last - first;
    const isFlat = !this.#byTime || span <= 0;
    const most = Math.max(1, this.#entries.length - 1);
    let before = 0;
    this.#places = Float64Array.from(times, (time, index) => {
      if (isFlat) return index / most;
      before = Number.isFinite(time) ? Math.max(before, (time - first) / span) : before;
      return before;
    });
    this.first = first;
    this.span = isFlat ? 0 : span;
  }

  setScale(scale) {
    this.#byTime = scale === "time";
    setText(this.#scale, this.#byTime ? "By time" : "By order");
    this.#place();
    this.showAll();
  }

  select(index) {
    this.#selected = index;
    const entry = this.#entries[index];
    if (entry) {
      setText(this.#note, `Entry ${index + 1} of ${this.#entries.length}: ${entry.title}`);
      const place = this.#places[index];
      const width = this.#end - this.#start;
      if (place < this.#start || place > this.#end) this.#view(place - width / 2, place + width / 2);
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
    const middle = centre ?? (this.#selected >= 0 ? this.#places[this.#selected] : (this.#start + this.#end) / 2);
    const width = Math.max(1e-7, Math.min(1, (this.#end - this.#start) / factor));
    const part = Math.max(0, Math.min(1, (middle - this.#start) / (this.#end - this.#start)));
    this.#view(middle - width * part, middle + width * (1 - part));
  }

  #view(start, end) {
    const width = Math.min(1, end - start);
    this.#start = Math.max(0, Math.min(1 - width, start));
    this.#end = this.#start + width;
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
    this.#isStale = true;
    this.draw();
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
    const [width, height] = [this.#width, this.#height];
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

  #gutter() {
    return this.#width < 560 ? 74 : GUTTER;
  }

  #x(place) {
    const left = this.#gutter();
    return left + ((place - this.#start) / (this.#end - this.#start)) * (this.#width - left - 8);
  }

  #placeAt(x) {
    const left = this.#gutter();
    return this.#start + ((x - left) / (this.#width - left - 8)) * (this.#end - this.#start);
  }

  #paintShown(context, height) {
    const [first, last] = this.#shown;
    if (!this.#entries.length || last <= first) return;
    const from = Math.max(this.#gutter(), this.#x(this.#places[first] ?? 0));
    const until = this.#x(this.#places[Math.min(last, this.#places.length) - 1] ?? 1);
    if (until < from) return;
    context.fillStyle = this.#colour("--picture-shown");
    context.fillRect(from - 2, 0, Math.max(4, until - from + 4), height - AXIS);
  }

  #paintLanes(context, width) {
    context.fillStyle = this.#colour("--line");
    this.#lanes.forEach((_, index) => context.fillRect(this.#gutter(), (index + 1) * LANE - 0.5, width, 0.5));
  }

  #paintMarks(context) {
    const left = this.#gutter();
    const scale = (this.#width - left - 8) / (this.#end - this.#start);
    const perMs = this.span ? scale / this.span : 0;
    const rows = new Map(this.#lanes.map((lane, index) => [lane, { y: index * LANE, colour: this.#colour(laneOf(lane)[2]) }]));
    const failed = [];
    const [from, until] = this.#bounds();
    let colour = null;
    for (let index = from; index < until; index += 1) {
      const entry = this.#entries[index];
      const row = rows.get(entry.lane);
      const x = left + (this.#places[index] - this.#start) * scale;
      const length = Math.max(LEAST_MARK, Math.min(4000, (entry.duration_ms ?? 0) * perMs));
      if (entry.ok === false) failed.push([x, row.y, length]);
      else {
        if (colour !== row.colour) context.fillStyle = colour = row.colour;
        context.fillRect(x - 1, row.y + 6, length, LANE - 12);
      }
    }
    // Failures last and taller, so that their number never hides them, and so that they differ by more than colour.
    context.fillStyle = this.#colour("--bad");
    for (const [x, y, length] of failed) context.fillRect(x - 1, y + 2, length, LANE - 4);
    // What begins left of the range is cut at the names.
    context.clearRect(0, 0, left - 2, this.#height);
    this.#paintNames(context);
  }

  #paintNames(context) {
    context.fillStyle = this.#colour("--muted");
    context.textAlign = "left";
    this.#lanes.forEach((lane, index) => context.fillText(laneOf(lane)[1], 0, index * LANE + LANE / 2, this.#gutter() - 8));
  }

  // The entries in sight. Places only grow, so this is a binary search.
  #bounds() {
    const find = (place) => {
      let low = 0;
      let high = this.#places.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.#places[middle] < place) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    const width = this.#end - this.#start;
    return [find(this.#start - width * 0.02), find(this.#end + width * 0.005)];
  }

  #paintAxis(context, width, height) {
    context.fillStyle = this.#colour("--muted");
    context.textAlign = "center";
    const ticks = Math.max(2, Math.floor((width - this.#gutter()) / 120));
    for (let tick = 0; tick <= ticks; tick += 1) {
      const place = this.#start + ((this.#end - this.#start) * tick) / ticks;
      const x = this.#x(place);
      context.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      context.fillText(this.#tick(place), x, height - AXIS / 2 + 2);
    }
  }

  #tick(place) {
    if (!this.span) return `#${Math.round(place * Math.max(0, this.#entries.length - 1)) + 1}`;
    const at = this.first + place * this.span;
    const shown = (this.#end - this.#start) * this.span;
    if (shown > 172_800_000) return moment(at).replace(/, .*/, "");
    return shown < 10_000 ? `${clock(at)}.${String(Math.floor(at % 1000)).padStart(3, "0")}` : clock(at);
  }

  #paintSelected(context, height) {
    if (this.#selected < 0) return;
    const x = Math.round(this.#x(this.#places[this.#selected]));
    if (x < this.#gutter() - 2) return;
    context.fillStyle = this.#colour("--text");
    context.fillRect(x - 0.5, 0, 1.5, height - AXIS);
    context.beginPath();
    context.moveTo(x - 5, 0);
    context.lineTo(x + 6, 0);
    context.lineTo(x + 0.5, 6);
    context.fill();
  }

  #nearest(x, y) {
    const lane = this.#lanes[Math.floor(y / LANE)];
    const place = this.#placeAt(x);
    const reach = (8 / (this.#width || 1)) * (this.#end - this.#start);
    const [from, until] = this.#bounds();
    let best = -1;
    let least = Infinity;
    for (let index = from; index < until; index += 1) {
      const entry = this.#entries[index];
      const length = this.span ? (entry.duration_ms ?? 0) / this.span : 0;
      const away = Math.max(this.#places[index] - place, place - this.#places[index] - length, 0);
      const cost = away + (entry.lane === lane ? 0 : reach * 3);
      if (cost < least) [best, least] = [index, cost];
    }
    return least <= reach * 2 ? best : -1;
  }

  #listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, start: this.#start, end: this.#end, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held) {
        const moved = ((event.offsetX - held.x) / (this.#width - this.#gutter())) * (held.end - held.start);
        held.moved ||= Math.abs(event.offsetX - held.x) > 4;
        if (held.moved) this.#view(held.start - moved, held.end - moved);
      } else this.#hover(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      const wasMoved = held?.moved;
      held = null;
      if (wasMoved) return;
      const index = this.#nearest(event.offsetX, event.offsetY);
      if (index >= 0) this.#onSelect(index);
    });
    canvas.addEventListener("pointercancel", () => (held = null));
    canvas.addEventListener("pointerleave", () => (this.#tip.hidden = true));
    canvas.addEventListener("dblclick", (event) => this.zoom(4, this.#placeAt(event.offsetX)));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const width = this.#end - this.#start;
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          const moved = ((event.deltaX || event.deltaY) / this.#width) * width;
          this.#view(this.#start + moved, this.#end + moved);
        } else this.zoom(Math.exp(-event.deltaY / 300), this.#placeAt(event.offsetX));
      },
      { passive: false },
    );
    this.#watch = new ResizeObserver(() => {
      this.#width = canvas.clientWidth;
      this.draw();
    });
    this.#watch.observe(canvas);
    window.addEventListener("themechange", this.#recolour);
  }

  #hover(event) {
    const index = this.#nearest(event.offsetX, event.offsetY);
    this.canvas.classList.toggle("pointing", index >= 0);
    this.#tip.hidden = index < 0;
    if (index < 0) return;
    const entry = this.#entries[index];
    const took = entry.duration_ms === undefined ? "" : ` · ${duration(entry.duration_ms)}`;
    setText(this.#tip, `${entry.at ? clock(entry.at) : ""}${took} · ${shorten(entry.title, 120)}`);
    const isRight = event.offsetX > this.#width / 2;
    this.#tip.style.left = isRight ? "auto" : `${event.offsetX + 12}px`;
    this.#tip.style.right = isRight ? `${this.#width - event.offsetX + 12}px` : "auto";
    this.#tip.style.top = `${event.offsetY + 14}px`;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const width = this.#end - this.#start;
    const moves = {
      "+": () => this.zoom(2),
      "=": () => this.zoom(2),
      "-": () => this.zoom(0.5),
      0: () => this.showAll(),
      ArrowRight: () => this.#step(1),
      ArrowLeft: () => this.#step(-1),
      PageDown: () => this.#view(this.#start + width / 2, this.#end + width / 2),
      PageUp: () => this.#view(this.#start - width / 2, this.#end - width / 2),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  }

  #step(by) {
    const next = Math.max(0, Math.min(this.#entries.length - 1, this.#selected + by));
    if (this.#entries.length) this.#onSelect(next);
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
