// The screen of a terminal: an honest subset of VT100 and xterm. Text, cursor movement, erasing, inserting, scroll regions,
// colours and the alternate screen work; mouse reports and character sets do not, and every character is one cell wide.

import { h, setText } from "./dom.js";
import { Codes, PLAIN, restyled } from "./terminal_codes.js";

const MOST_HISTORY = 5000;
const BLANK = { char: " ", style: PLAIN };

export class TerminalScreen {
  // A growing screen has one line and keeps all others as history; it shows the output of a process without a terminal.
  constructor(columns, rows, { growing = false, reply = () => {} } = {}) {
    this.columns = columns;
    this.rows = rows;
    this.element = h("div", { class: `screen ${growing ? "growing" : ""}` });
    this.applicationCursor = false;
    this.bracketedPaste = false;
    this.#growing = growing;
    this.#reply = reply;
    this.#reset();
  }

  #growing;
  #reply;
  #codes = new Codes();
  #lines = [];
  #main = null;
  #x = 0;
  #y = 0;
  #style = PLAIN;
  #saved = { x: 0, y: 0, style: PLAIN };
  #top = 0;
  #bottom = 0;
  #history = [];
  #isCursorShown = true;
  #isWrapping = true;
  #changed = new Set();
  #frame = 0;
  onDraw = () => {};

  write(text) {
    this.#codes.read(text, this);
    this.#later();
  }

  // Shell output of a stopped screen may be followed by a note of the page.
  note(text) {
    this.write(`\r\n\u001b[0;2m${text}\u001b[0m\r\n`);
  }

  resize(columns, rows) {
    while (this.#lines.length > rows) {
      if (this.#y < this.#lines.length - 1) this.#drop(this.#lines.pop());
      else this.#keep(this.#lines.shift(), (this.#y -= 1));
    }
    while (this.#lines.length < rows) this.#lines.push(this.#line());
    this.columns = columns;
    this.rows = rows;
    [this.#top, this.#bottom] = [0, rows - 1];
    this.#x = Math.min(this.#x, columns - 1);
    for (const line of this.#lines) this.#changed.add(line);
    this.#place();
    this.#later();
  }

  #reset() {
    for (const line of [...this.#history, ...this.#lines]) line.element.remove();
    this.#history = [];
    this.#lines = Array.from({ length: this.rows }, () => this.#line());
    this.#main = null;
    [this.#x, this.#y, this.#style] = [0, 0, PLAIN];
    [this.#top, this.#bottom] = [0, this.rows - 1];
    this.#place();
  }

  #line() {
    const line = { cells: [], element: h("div", { class: "row" }) };
    this.#changed.add(line);
    return line;
  }

  // Put the elements of the lines in order at the end.
  #place() {
    this.element.append(...this.#lines.map((line) => line.element));
    for (const line of this.#lines) this.#changed.add(line);
  }

  #keep(line) {
    this.#history.push(line);
    if (this.#history.length > MOST_HISTORY) this.#drop(this.#history.shift());
  }

  #drop(line) {
    line.element.remove();
    this.#changed.delete(line);
  }

  text(run) {
    for (const char of run) {
      if (this.#x >= this.columns) {
        if (this.#isWrapping) {
          this.#x = 0;
          this.#feed();
        } else this.#x = this.columns - 1;
      }
      const { cells } = this.#lines[this.#y];
      while (cells.length < this.#x) cells.push(BLANK);
      cells[this.#x] = { char, style: this.#style };
      this.#x += 1;
    }
    this.#changed.add(this.#lines[this.#y]);
  }

  control(char) {
    this.#changed.add(this.#lines[this.#y]);
    if (char === "\r") this.#x = 0;
    else if (char === "\n" || char === "\v" || char === "\f") {
      if (this.#growing) this.#x = 0;
      this.#feed();
    } else if (char === "\b") this.#x = Math.max(0, Math.min(this.#x, this.columns - 1) - 1);
    else if (char === "\t") this.#x = Math.min(this.columns - 1, (Math.floor(this.#x / 8) + 1) * 8);
  }

  escape(kind) {
    if (kind === "7") this.#saved = { x: this.#x, y: this.#y, style: this.#style };
    else if (kind === "8") this.#restore();
    else if (kind === "D") this.#feed();
    else if (kind === "E") {
      this.#x = 0;
      this.#feed();
    } else if (kind === "M") this.#reverse();
    else if (kind === "c") this.#reset();
  }

  #restore() {
    this.#move(this.#saved.x, this.#saved.y);
    this.#style = this.#saved.style;
  }

  #move(x, y) {
    this.#changed.add(this.#lines[this.#y]);
    this.#x = Math.max(0, Math.min(this.columns - 1, x));
    this.#y = Math.max(0, Math.min(this.rows - 1, y));
    this.#changed.add(this.#lines[this.#y]);
  }

  #feed() {
    this.#changed.add(this.#lines[this.#y]);
    if (this.#y === this.#bottom) this.#scroll(1);
    else if (this.#y < this.rows - 1) this.#y += 1;
    this.#changed.add(this.#lines[this.#y]);
  }

  #reverse() {
    if (this.#y === this.#top) this.#scroll(-1);
    else this.#move(this.#x, this.#y - 1);
  }

  #scroll(by, top = this.#top) {
    for (let step = 0; step < Math.min(Math.abs(by), this.rows); step += 1) {
      const [from, until] = by > 0 ? [top, this.#bottom] : [this.#bottom, top];
      const [gone] = this.#lines.splice(from, 1);
      const isHistory = by > 0 && top === 0 && !this.#main;
      const line = this.#line();
      this.#lines.splice(until, 0, line);
      const before = this.#lines[until + 1]?.element ?? null;
      this.element.insertBefore(line.element, before);
      if (isHistory) this.#keep(gone);
      else this.#drop(gone);
    }
  }

  csi(mark, numbers, final) {
    if (mark === "?") return this.#mode(numbers, final === "h", final);
    if (mark) return;
    const first = numbers[0] ?? 0;
    const by = Math.max(1, first);
    const x = Math.min(this.#x, this.columns - 1);
    const y = this.#y;
    const moves = {
      A: [x, Math.max(y >= this.#top ? this.#top : 0, y - by)],
      B: [x, Math.min(y <= this.#bottom ? this.#bottom : this.rows - 1, y + by)],
      C: [x + by, y],
      D: [x - by, y],
      E: [0, y + by],
      F: [0, y - by],
      G: [by - 1, y],
      "`": [by - 1, y],
      H: [(numbers[1] || 1) - 1, by - 1],
      f: [(numbers[1] || 1) - 1, by - 1],
      d: [x, by - 1],
    };
    if (moves[final]) return this.#move(...moves[final]);
    this.#edit(final, first, by, numbers);
  }

  #edit(final, first, by, numbers) {
    const line = this.#lines[this.#y];
    const { cells } = line;
    this.#changed.add(line);
    while ("@PX".includes(final) && cells.length < this.#x) cells.push(BLANK);
    if (final === "m") this.#style = restyled(this.#style, numbers);
    else if (final === "K") this.#eraseLine(line, first);
    else if (final === "J") this.#eraseScreen(first);
    else if (final === "P") cells.splice(this.#x, by);
    else if (final === "X") for (let x = this.#x; x < Math.min(cells.length, this.#x + by); x += 1) cells[x] = this.#blank();
    else if (final === "@") {
      cells.splice(this.#x, 0, ...Array.from({ length: Math.min(by, this.columns) }, () => this.#blank()));
      cells.length = Math.min(cells.length, this.columns);
    } else if (final === "L") this.#scroll(-by, this.#y);
    else if (final === "M") this.#scroll(by, this.#y);
    else if (final === "S") this.#scroll(by);
    else if (final === "T") this.#scroll(-by);
    else if (final === "r") this.#region(first, numbers[1] ?? 0);
    else if (final === "s") this.#saved = { x: this.#x, y: this.#y, style: this.#style };
    else if (final === "u") this.#restore();
    else if (final === "n" && first === 6) this.#reply(`\u001b[${this.#y + 1};${Math.min(this.#x, this.columns - 1) + 1}R`);
    else if (final === "n" && first === 5) this.#reply("\u001b[0n");
    else if (final === "c") this.#reply("\u001b[?6c");
  }

  #blank() {
    const { background } = this.#style;
    return background === null ? BLANK : { char: " ", style: { ...PLAIN, background } };
  }

  #region(top, bottom) {
    const last = bottom > 0 ? Math.min(bottom, this.rows) : this.rows;
    if (Math.max(top, 1) >= last) return;
    [this.#top, this.#bottom] = [Math.max(top, 1) - 1, last - 1];
    this.#move(0, 0);
  }

  #eraseLine(line, how) {
    const { cells } = line;
    if (how === 0) cells.length = Math.min(cells.length, this.#x);
    else if (how === 1) for (let x = 0; x <= Math.min(this.#x, cells.length - 1); x += 1) cells[x] = BLANK;
    else cells.length = 0;
    this.#changed.add(line);
  }

  #eraseScreen(how) {
    if (how === 3) {
      for (const line of this.#history) this.#drop(line);
      this.#history = [];
      return;
    }
    if (how !== 2) this.#eraseLine(this.#lines[this.#y], how);
    this.#lines.forEach((line, y) => {
      if (how === 2 || (how === 0 && y > this.#y) || (how === 1 && y < this.#y)) this.#eraseLine(line, 2);
    });
  }

  #mode(numbers, isOn, final) {
    if (final !== "h" && final !== "l") return;
    for (const number of numbers) {
      if (number === 1) this.applicationCursor = isOn;
      else if (number === 7) this.#isWrapping = isOn;
      else if (number === 25) this.#isCursorShown = isOn;
      else if (number === 2004) this.bracketedPaste = isOn;
      else if (number === 47 || number === 1047 || number === 1049) this.#alternate(isOn);
    }
    this.#changed.add(this.#lines[this.#y]);
  }

  #alternate(isOn) {
    if (isOn === (this.#main !== null) || this.#growing) return;
    for (const line of this.#lines) line.element.remove();
    if (isOn) {
      this.#main = { lines: this.#lines, x: this.#x, y: this.#y, style: this.#style };
      this.#lines = Array.from({ length: this.rows }, () => this.#line());
      [this.#x, this.#y] = [0, 0];
    } else {
      const { lines, x, y, style } = this.#main;
      this.#main = null;
      this.#lines = lines;
      while (this.#lines.length < this.rows) this.#lines.push(this.#line());
      while (this.#lines.length > this.rows) this.#drop(this.#lines.pop());
      [this.#x, this.#y, this.#style] = [Math.min(x, this.columns - 1), Math.min(y, this.rows - 1), style];
    }
    [this.#top, this.#bottom] = [0, this.rows - 1];
    this.#place();
  }

  #later() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
      this.onDraw();
    });
  }

  #draw() {
    for (const line of this.#changed) this.#drawLine(line);
    this.#changed.clear();
  }

  #drawLine(line) {
    const isCursor = !this.#growing && this.#isCursorShown && line === this.#lines[this.#y];
    const cells = line.cells.slice(0, this.columns);
    if (isCursor) while (cells.length <= Math.min(this.#x, this.columns - 1)) cells.push(BLANK);
    const runs = [];
    cells.forEach(({ char, style }, x) => {
      const isHere = isCursor && x === Math.min(this.#x, this.columns - 1);
      const last = runs.at(-1);
      if (last && last.style === style && !isHere && !last.isHere) last.text += char;
      else runs.push({ text: char, style, isHere });
    });
    line.element.replaceChildren(...runs.map(runElement));
    if (!runs.length) line.element.textContent = "\u00a0";
  }
}

function runElement({ text, style, isHere }) {
  const classes = [];
  for (const name of ["bold", "dim", "italic", "underline", "inverse"]) if (style[name]) classes.push(name);
  if (typeof style.foreground === "number") classes.push(`fg-${style.foreground}`);
  if (typeof style.background === "number") classes.push(`bg-${style.background}`);
  if (isHere) classes.push("cursor");
  const span = document.createElement("span");
  if (classes.length) span.className = classes.join(" ");
  if (typeof style.foreground === "string") span.style.color = style.foreground;
  if (typeof style.background === "string") span.style.backgroundColor = style.background;
  setText(span, text);
  return span;
}
