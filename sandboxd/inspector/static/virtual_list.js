// A list of any length: only the rows in sight exist as elements, and scrolling recycles them. It never renders an item
// that is out of sight, and `render` only changes the text of a row that it gets.

import { h } from "./dom.js";

const SPARE_ROWS = 6;
let lists = 0;

export class VirtualList {
  // `makeRow()` returns a row element; `render(row, item)` shows an item in it. `onSelect(item, index)` follows clicks and keys.
  constructor({ label, rowHeight, makeRow, render, onSelect, onScroll = () => {} }) {
    this.id = `list-${(lists += 1)}`;
    this.rowHeight = rowHeight;
    this.items = [];
    this.selected = -1;
    this.first = 0;
    this.onScroll = onScroll;
    this.#makeRow = makeRow;
    this.#render = render;
    this.#onSelect = onSelect;
    this.#sizer = h("div", { class: "list-sizer", role: "presentation" });
    this.element = h("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": label }, this.#sizer);
    this.element.addEventListener("scroll", () => this.#later(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("click", (event) => this.#click(event));
    this.#watch = new ResizeObserver(() => this.#resize());
    this.#watch.observe(this.element);
  }

  #makeRow;
  #render;
  #onSelect;
  #sizer;
  #watch;
  #rows = [];
  #frame = 0;
  // The height and the place of the list, kept: asking the browser after a change makes it lay out the page at once.
  #height = 0;
  #scrolled = 0;

  close() {
    this.#watch.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  get isAtEnd() {
    return this.#scrolled + this.#height >= (this.items.length - 1) * this.rowHeight;
  }

  setItems(items, { keepEnd = false } = {}) {
    const wasAtEnd = keepEnd && this.isAtEnd;
    this.items = items;
    this.#sizer.style.height = `${items.length * this.rowHeight}px`;
    for (const row of this.#rows) row.index = -1;
    if (this.selected >= items.length) this.selected = -1;
    if (wasAtEnd) this.scrollTo(items.length * this.rowHeight);
    else this.#scrolled = Math.min(this.#scrolled, this.#most());
    this.draw();
  }

  #most() {
    return Math.max(0, this.items.length * this.rowHeight - this.#height);
  }

  scrollTo(top) {
    this.#scrolled = Math.max(0, Math.min(this.#most(), top));
    this.element.scrollTop = this.#scrolled;
    this.draw();
  }

  // Show the end, also when the list is not laid out yet.
  scrollToEnd() {
    this.#height = this.element.clientHeight;
    this.scrollTo(this.#most());
  }

  select(index, { reveal = true, report = true } = {}) {
    if (index < 0 || index >= this.items.length) return;
    const before = this.selected;
    this.selected = index;
    if (reveal) this.reveal(index);
    for (const row of this.#rows) if (row.index === before || row.index === index) row.index = -1;
    this.draw();
    if (report) this.#onSelect(this.items[index], index);
  }

  reveal(index) {
    const top = index * this.rowHeight;
    this.#height ||= this.element.clientHeight;
    const isFar = Math.abs(top - this.#scrolled) > 2 * this.#height;
    if (isFar) this.scrollTo(top - Math.floor(this.#height / 2));
    else if (top < this.#scrolled) this.scrollTo(top);
    else if (top + this.rowHeight > this.#scrolled + this.#height) this.scrollTo(top + this.rowHeight - this.#height);
  }

  range() {
    const first = Math.floor(this.#scrolled / this.rowHeight);
    return [first, Math.min(this.items.length, first + Math.ceil(this.#height / this.rowHeight))];
  }

  #later() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#scrolled = this.element.scrollTop;
      this.draw();
      this.onScroll();
    });
  }

  #resize() {
    this.#height = this.element.clientHeight;
    this.#scrolled = this.element.scrollTop;
    const wanted = Math.ceil(this.#height / this.rowHeight) + 2 * SPARE_ROWS;
    while (this.#rows.length < wanted) {
      const element = this.#makeRow();
      element.setAttribute("role", "option");
      element.id = `${this.id}-${this.#rows.length}`;
      this.#rows.push({ element, index: -1 });
      this.#sizer.append(element);
    }
    while (this.#rows.length > wanted) this.#rows.pop().element.remove();
    for (const row of this.#rows) row.index = -1;
    this.draw();
    this.onScroll();
  }

  draw() {
    const { length } = this.#rows;
    if (!length) return;
    const first = Math.max(0, Math.floor(this.#scrolled / this.rowHeight) - SPARE_ROWS);
    for (let index = first; index < first + length; index += 1) {
      const row = this.#rows[index % length];
      if (row.index === index) continue;
      row.index = index;
      const { element } = row;
      element.hidden = index >= this.items.length;
      if (element.hidden) continue;
      element.style.transform = `translateY(${index * this.rowHeight}px)`;
      element.setAttribute("aria-setsize", this.items.length);
      element.setAttribute("aria-posinset", index + 1);
      element.setAttribute("aria-selected", index === this.selected);
      this.#render(element, this.items[index], index);
    }
    const active = this.#rows.find((row) => row.index === this.selected);
    if (active && this.selected >= 0) this.element.setAttribute("aria-activedescendant", active.element.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  #click(event) {
    const place = event.target.closest("[role=option]");
    const row = this.#rows.find(({ element }) => element === place);
    if (row) this.select(row.index);
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.#height / this.rowHeight) - 1);
    const last = this.items.length - 1;
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -last - 1, End: last + 1 };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.select(Math.max(0, Math.min(last, this.selected + step)));
  }
}
