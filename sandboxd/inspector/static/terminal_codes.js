// The control sequences of a terminal, cut out of its output: text, controls, CSI sequences. It remembers a sequence that
// is not complete yet, and drops what nothing here obeys (titles, device strings).

const CSI = /^([?>!=<]?)([\d;:]*)([ -/]*)([@-~])/;
const MOST_SEQUENCE = 4096;
const STRINGS = new Set(["]", "P", "^", "_", "X"]);

export class Codes {
  #left = "";

  // Calls `screen.text(run)`, `screen.control(char)`, `screen.escape(char)` and `screen.csi(mark, numbers, final)`.
  read(text, screen) {
    const whole = this.#left + text;
    this.#left = "";
    let at = 0;
    while (at < whole.length) {
      const char = whole[at];
      if (char === "\u001b") {
        const length = this.#sequence(whole, at, screen);
        if (length === 0) {
          this.#left = whole.slice(at, at + MOST_SEQUENCE);
          return;
        }
        at += length;
      } else if (char < " " || char === "\u007f") {
        screen.control(char);
        at += 1;
      } else {
        const end = nextControl(whole, at);
        screen.text(whole.slice(at, end));
        at = end;
      }
    }
  }

  // Returns the length of the sequence at this place, or 0 if its end has not arrived.
  #sequence(text, at, screen) {
    const kind = text[at + 1];
    if (kind === undefined) return 0;
    if (kind === "[") {
      const rest = text.slice(at + 2, at + 2 + MOST_SEQUENCE);
      const found = CSI.exec(rest);
      if (found) {
        const numbers = found[2] === "" ? [] : found[2].split(/[;:]/).map((number) => Math.min(65_535, Number(number) || 0));
        if (!found[3]) screen.csi(found[1], numbers, found[4]);
        return 2 + found[0].length;
      }
      return /^[?>!=<]?[\d;:]*[ -/]*$/.test(rest) && rest.length < MOST_SEQUENCE ? 0 : 2;
    }
    if (STRINGS.has(kind)) {
      const rest = text.slice(at + 2, at + 2 + MOST_SEQUENCE);
      const end = /\u0007|\u001b\\/.exec(rest);
      if (end) return 2 + end.index + end[0].length;
      return rest.length < MOST_SEQUENCE ? 0 : 2;
    }
    if ("()*+#% ".includes(kind)) return text[at + 2] === undefined ? 0 : 3;
    screen.escape(kind);
    return 2;
  }
}

function nextControl(text, from) {
  for (let at = from; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code < 0x20 || code === 0x7f) return at;
  }
  return text.length;
}

const BASE = { bold: false, dim: false, italic: false, underline: false, inverse: false, foreground: null, background: null };
const styles = new Map();

function styleOf(fields) {
  const key = JSON.stringify(fields);
  if (!styles.has(key)) styles.set(key, Object.freeze(fields));
  return styles.get(key);
}

export const PLAIN = styleOf({ ...BASE });

// The style after a "select graphic rendition" sequence.
export function restyled(style, numbers) {
  let made = { ...style };
  const left = numbers.length ? [...numbers] : [0];
  while (left.length) {
    const number = left.shift();
    if (number === 0) made = { ...BASE };
    else if (number === 1) made.bold = true;
    else if (number === 2) made.dim = true;
    else if (number === 3) made.italic = true;
    else if (number === 4) made.underline = true;
    else if (number === 7) made.inverse = true;
    else if (number === 22) made.bold = made.dim = false;
    else if (number === 23) made.italic = false;
    else if (number === 24) made.underline = false;
    else if (number === 27) made.inverse = false;
    else if (number >= 30 && number <= 37) made.foreground = number - 30;
    else if (number === 38) made.foreground = colour(left);
    else if (number === 39) made.foreground = null;
    else if (number >= 40 && number <= 47) made.background = number - 40;
    else if (number === 48) made.background = colour(left);
    else if (number === 49) made.background = null;
    else if (number >= 90 && number <= 97) made.foreground = number - 82;
    else if (number >= 100 && number <= 107) made.background = number - 92;
  }
  return styleOf(made);
}

// A number up to 15 is of the palette; any other colour is the text of an rgb().
function colour(left) {
  const kind = left.shift();
  if (kind === 2) {
    const [red = 0, green = 0, blue = 0] = left.splice(0, 3);
    return rgb(red, green, blue);
  }
  if (kind !== 5) return null;
  const index = left.shift() ?? 0;
  if (index < 16) return index;
  if (index >= 232) return rgb(8 + (index - 232) * 10, 8 + (index - 232) * 10, 8 + (index - 232) * 10);
  const level = (part) => (part ? 55 + part * 40 : 0);
  const cube = index - 16;
  return rgb(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

const rgb = (...parts) => `rgb(${parts.map((part) => Math.min(255, part)).join(" ")})`;
