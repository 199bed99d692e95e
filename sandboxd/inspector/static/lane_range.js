// Which part of a timeline is in sight: places of entries from 0 to 1, by time or evenly, and the range of them that a
// picture of some width shows. It draws nothing.

import { clock, moment } from "./text.js";

const GUTTER = 96;
const NARROW_GUTTER = 74;
const MARGIN = 8;
const REACH = 8;
const OTHER_LANE = 3;

export class LaneRange {
  entries = [];
  places = new Float64Array(0);
  start = 0;
  end = 1;
  width = 0;
  // Whether places keep the gaps of time; null until the first entries decide it.
  isByTime = null;
  #first = 0;
  #span = 0;
  #longest = 0;

  // A range that shows everything goes on doing so.
  setEntries(entries) {
    this.entries = entries;
    const times = entries.map((entry) => Date.parse(entry.at));
    this.#first = times.find(Number.isFinite) ?? 0;
    const span = (times.findLast(Number.isFinite) ?? this.#first) - this.#first;
    if (entries.length) this.isByTime ??= !isMostlyGaps(times, span);
    this.#span = this.isByTime && span > 0 ? span : 0;
    this.#longest = entries.reduce((longest, { duration_ms: took }) => Math.max(longest, took ?? 0), 0);
    const most = Math.max(1, entries.length - 1);
    let before = 0;
    this.places = Float64Array.from(times, (time, index) => {
      if (!this.#span) return index / most;
      if (Number.isFinite(time)) before = Math.max(before, (time - this.#first) / this.#span);
      return before;
    });
  }

  // How many milliseconds the picture shows; 0 if it is not by time.
  get shownMs() {
    return (this.end - this.start) * this.#span;
  }

  get gutter() {
    return this.width < 560 ? NARROW_GUTTER : GUTTER;
  }

  get scale() {
    return (this.width - this.gutter - MARGIN) / (this.end - this.start);
  }

  x(place) {
    return this.gutter + (place - this.start) * this.scale;
  }

  placeAt(x) {
    return this.start + (x - this.gutter) / this.scale;
  }

  view(start, end) {
    const width = Math.min(1, end - start);
    this.start = Math.max(0, Math.min(1 - width, start));
    this.end = this.start + width;
  }

  zoom(factor, centre = (this.start + this.end) / 2) {
    const width = Math.max(1e-7, Math.min(1, (this.end - this.start) / factor));
    const part = Math.max(0, Math.min(1, (centre - this.start) / (this.end - this.start)));
    this.view(centre - width * part, centre + width * (1 - part));
  }

  // Returns whether the range changed.
  reveal(place) {
    const width = this.end - this.start;
    const isHidden = place < this.start || place > this.end;
    if (isHidden) this.view(place - width / 2, place + width / 2);
    return isHidden;
  }

  // The entries in sight. Places only grow, so this is a binary search. An entry ends at its place: one that lies right of
  // the range may begin in it.
  bounds() {
    const width = this.end - this.start;
    const later = this.#span ? this.#longest / this.#span : 0;
    return [this.#find(this.start - width * 0.005), this.#find(this.end + width * 0.005 + later)];
  }

  #find(place) {
    let low = 0;
    let high = this.places.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.places[middle] < place) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The entry at this point, or -1. Entries of this lane come before nearer ones of others.
  nearest(x, lane) {
    const place = this.placeAt(x);
    const reach = REACH / this.scale;
    const [from, until] = this.bounds();
    let best = -1;
    let least = Infinity;
    for (let index = from; index < until; index += 1) {
      const entry = this.entries[index];
      const length = this.#span ? (entry.duration_ms ?? 0) / this.#span : 0;
      const away = Math.max(this.places[index] - length - place, place - this.places[index], 0);
      const cost = away + (entry.lane === lane ? 0 : reach * OTHER_LANE);
      if (cost < least) [best, least] = [index, cost];
    }
    return least <= reach * 2 ? best : -1;
  }

  tick(place) {
    if (!this.#span) return `#${Math.round(place * Math.max(0, this.entries.length - 1)) + 1}`;
    const at = this.#first + place * this.#span;
    if (this.shownMs > 172_800_000) return moment(at).replace(/, .*/, "");
    return this.shownMs < 10_000 ? `${clock(at)}.${String(Math.floor(at % 1000)).padStart(3, "0")}` : clock(at);
  }
}

const FEW_GAPS = 5;
const MOST_GAPS = 0.8;

// A session that rests for hours between its turns would be a few marks in an empty picture.
function isMostlyGaps(times, span) {
  const gaps = [];
  for (let index = 1; index < times.length; index += 1) gaps.push(times[index] - times[index - 1] || 0);
  const largest = gaps.sort((a, b) => b - a).slice(0, FEW_GAPS);
  return times.length > 4 * FEW_GAPS && largest.reduce((sum, gap) => sum + gap, 0) > MOST_GAPS * span;
}
