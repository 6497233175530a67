/** A heat map as a drawing to keep: title, tokens along both sides, colour bar and a caption that says what it is of.
 *
 * It is written as SVG text, without a page; its PNG is the same drawing, painted twice as fine (lib/saving.ts).
 */

import { local } from "./local";
import { t } from "../text";
import { type ScaleName, shadeOf, type Shade, table } from "./colours";
import { clip, evenly, type Inks, LEAST } from "./heat";
import { type ColourScale, shareOf, ticksOf } from "./scale";
import type { Matrix } from "./source";
import { finePercent } from "./words";

export interface HeatFigure {
  title: string;
  /** What it is of: run, text, head, scale; each is one sentence or phrase. */
  caption: string[];
  /** What one number is called: "weight". */
  what: string;
  scale: ColourScale;
  colours: ScaleName;
  theme: Shade;
  /** The numbers, each the highest of `pool` × `pool`. */
  cells: Matrix;
  pool: number;
  /** The highest number of each row, where the scale is per row. */
  maxima: Float32Array | null;
  /** 0 where a cell is masked; null where there is no mask. */
  allowed: Matrix | null;
  /** The names of the tokens that are shown, and the number of the first of them. */
  queries: string[];
  keys: string[];
  first: { query: number; key: number };
  /** Whether a row's name says what the model writes there. */
  writes: boolean;
  inks: Inks;
  sans: string;
  mono: string;
  measure: (text: string, font: string) => number;
  /** Return the address of an image with these pixels. */
  image: (pixels: Uint32Array<ArrayBuffer>, columns: number, rows: number) => string;
}

/** Up to this many cells are rectangles that a drawing program can change; beyond, they are one image. */
export const MOST_CELLS = 10_000;
/** Up to this many, each says its number when it is pointed at. */
const MOST_TOLD = 2_500;
/** Up to this many tokens each has its name. */
const MOST_NAMES = 100;
const EDGE = 18;
const LINE = 17;
const BAR = 12;

interface Layout {
  /** Pixels a token. */
  size: number;
  left: number;
  top: number;
  right: number;
  bottom: number;
  width: number;
}

/** Return what a colour scale says in words. */
export function scaleWords(scale: ColourScale, what: string): string {
  if (scale.kind === "row") return t.heat.scaleWords.row(t.heat.what(what));
  const range = t.heat.scaleWords.range(
    t.heat.what(what),
    tickText(scale.low, scale, what),
    tickText(scale.high, scale, what),
  );
  return scale.kind === "linear" ? range : `${range}, ${t.heat.scaleWords[scale.kind]}`;
}

/** Return the number at a tick, in percent for weights; the last stands for all above it too. */
export function tickText(value: number, scale: ColourScale, what = "weight"): string {
  const few = Number(value.toPrecision(2));
  const text = isShare(scale, what)
    ? finePercent(few)
        .replace(/([.,]\d*?)0+ /, "$1 ")
        .replace(/[.,] /, " ")
    : local(String(few));
  const sign = scale.clipped && value === scale.high ? "≥ " : scale.kind === "log" && value === scale.low ? "≤ " : "";
  return sign + text.replace("-", "−");
}

/** Return whether numbers are read as percents: weights, and shares of a row's highest. */
export function isShare(scale: ColourScale, what: string): boolean {
  return what === "weight" && scale.low >= 0 && scale.high <= 1;
}

export function heatSvg(figure: HeatFigure): string {
  const at = layOut(figure);
  const title = wrapped(figure.title, (text) => figure.measure(text, fontOf(figure, 15, 600)), at.width - 2 * EDGE);
  const caption = figure.caption.flatMap((one) =>
    wrapped(one, (text) => figure.measure(text, fontOf(figure, 12)), at.width - 2 * EDGE),
  );
  const shift = EDGE + title.length * 20 + 6;
  const low = shift + at.bottom + 22;
  const below = low + BAR + LINE * 2 + 14;
  const height = Math.ceil(below + caption.length * LINE + EDGE - 6);
  const hatch = `hatch-${sum(figure.title + figure.caption.join())}`;
  const { inks } = figure;
  const line = `x="${EDGE}" font-family="${escaped(figure.sans)}"`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${at.width}" height="${height}" viewBox="0 0 ${at.width} ${height}">`,
    `<title>${escaped(figure.title)}</title>`,
    `<defs><pattern id="${hatch}" width="6" height="6" patternUnits="userSpaceOnUse">`,
    `<rect width="6" height="6" fill="${inks.masked}"/>`,
    `<path d="M-1 1 1 -1M0 6 6 0M5 7 7 5" stroke="${inks.hatch}" stroke-width="1"/></pattern></defs>`,
    `<rect width="100%" height="100%" fill="${inks.ground}"/>`,
    ...title.map(
      (text, index) =>
        `<text ${line} y="${EDGE + 14 + index * 20}" font-size="15" font-weight="600" fill="${inks.ink}">${escaped(text)}</text>`,
    ),
    `<g transform="translate(0 ${shift})">`,
    ...cellsOf(figure, at, hatch),
    ...namesOf(figure, at),
    "</g>",
    ...barOf(figure, at, low, hatch),
    ...caption.map(
      (text, index) =>
        `<text ${line} y="${below + 10 + index * LINE}" font-size="12" fill="${inks.faint}">${escaped(text)}</text>`,
    ),
    "</svg>",
  ].join("\n");
}

function layOut(figure: HeatFigure): Layout {
  const most = Math.max(figure.queries.length, figure.keys.length, 1);
  const size = most <= MOST_NAMES ? Math.min(26, Math.max(14, 640 / most)) : Math.max(0.05, 1000 / most);
  const longest = (names: string[], room: number): number =>
    Math.min(room, Math.max(16, ...names.slice(0, 400).map((name) => figure.measure(name, tokenFont(figure)))));
  const named = size >= LEAST;
  const numbers = (first: number, count: number): string[] => [String(first + count - 1)];
  const left =
    EDGE + 20 + longest(named ? figure.queries : numbers(figure.first.query, figure.queries.length), 260) + 8;
  const top = 20 + longest(named ? figure.keys : numbers(figure.first.key, figure.keys.length), 180) + 8;
  const right = left + figure.keys.length * size;
  return {
    size,
    left,
    top,
    right,
    bottom: top + figure.queries.length * size,
    width: Math.ceil(Math.max(right + EDGE, 460)),
  };
}

function cellsOf(figure: HeatFigure, { size, left, top, right, bottom }: Layout, hatch: string): string[] {
  const { cells, pool, inks } = figure;
  const each = size * pool;
  const drawn = [`<g shape-rendering="crispEdges" data-part="cells">`];
  if (cells.rows * cells.columns > MOST_CELLS) {
    drawn.push(
      `<image x="${left}" y="${top}" width="${round(right - left)}" height="${round(bottom - top)}" preserveAspectRatio="none" ` +
        `style="image-rendering:pixelated" href="${imageOf(figure)}"/>`,
    );
  } else {
    const told = cells.rows * cells.columns <= MOST_TOLD && pool === 1;
    for (let row = 0; row < cells.rows; row++)
      for (let column = 0; column < cells.columns; column++) {
        if (isMasked(figure, row, column)) continue;
        const colour = hex(shadeOf(shareAt(figure, row, column), figure.colours, figure.theme));
        const box = `x="${round(left + column * each)}" y="${round(top + row * each)}" width="${round(each)}" height="${round(each)}"`;
        const rect = `<rect ${box} fill="${colour}"`;
        drawn.push(told ? `${rect}><title>${escaped(toldAt(figure, row, column))}</title></rect>` : `${rect}/>`);
      }
  }
  const masked = maskedPath(figure, left, top, each, right, bottom);
  if (masked !== "") drawn.push(`<path data-part="masked" d="${masked}" fill="url(#${hatch})"/>`);
  drawn.push("</g>");
  if (size >= LEAST) {
    const lines = [
      ...figure.keys.map((_, key) => `M${round(left + key * size)} ${round(top)}V${round(bottom)}`),
      ...figure.queries.map((_, query) => `M${round(left)} ${round(top + query * size)}H${round(right)}`),
    ];
    drawn.push(`<path d="${lines.join("")}" stroke="${inks.line}" stroke-width="0.5"/>`);
  }
  drawn.push(
    `<rect x="${round(left)}" y="${round(top)}" width="${round(right - left)}" height="${round(bottom - top)}" fill="none" stroke="${inks.hatch}"/>`,
  );
  return drawn;
}

/** Masked cells that lie side by side are one rectangle. */
function maskedPath(
  figure: HeatFigure,
  left: number,
  top: number,
  each: number,
  right: number,
  bottom: number,
): string {
  const found: string[] = [];
  for (let row = 0; row < figure.cells.rows; row++)
    for (let column = 0; column < figure.cells.columns; column++) {
      if (!isMasked(figure, row, column)) continue;
      const from = column;
      while (column + 1 < figure.cells.columns && isMasked(figure, row, column + 1)) column++;
      const [x, y] = [left + from * each, top + row * each];
      const [wide, high] = [Math.min((column + 1 - from) * each, right - x), Math.min(each, bottom - y)];
      found.push(`M${round(x)} ${round(y)}h${round(wide)}v${round(high)}h${round(-wide)}z`);
    }
  return found.join("");
}

function namesOf(figure: HeatFigure, { size, left, top, bottom }: Layout): string[] {
  const { inks, first } = figure;
  const named = size >= LEAST;
  const every = named ? 1 : evenly((LEAST + 2) / size);
  const fit = (name: string, room: number): string =>
    clip(name, room, (text) => figure.measure(text, tokenFont(figure)));
  const text = `font-family="${escaped(named ? figure.mono : figure.sans)}" font-size="12" fill="${inks.ink}" dominant-baseline="central"`;
  const axis = `font-family="${escaped(figure.sans)}" font-size="12" font-weight="600"`;
  const labelled = (count: number, from: number): number[] =>
    Array.from({ length: count }, (_, place) => place).filter((place) => (from + place) % every === 0);
  return [
    `<text x="${round(left)}" y="8" ${axis} fill="${inks.key}">${escaped(t.heat.axes.key)}</text>`,
    `<text transform="translate(${EDGE + 5} ${round((top + bottom) / 2)}) rotate(-90)" text-anchor="middle" ${axis} fill="${inks.query}">` +
      `${escaped(figure.writes ? t.heat.axes.writes : t.heat.axes.query)}</text>`,
    ...labelled(figure.queries.length, first.query).map((query) => {
      const name = named ? fit(figure.queries[query], 260) : String(first.query + query);
      return `<text x="${round(left - 8)}" y="${round(top + (query + 0.5) * size)}" text-anchor="end" ${text}>${escaped(name)}</text>`;
    }),
    ...labelled(figure.keys.length, first.key).map((key) => {
      const name = named ? fit(figure.keys[key], 180) : String(first.key + key);
      return `<text transform="translate(${round(left + (key + 0.5) * size)} ${round(top - 8)}) rotate(-90)" ${text}>${escaped(name)}</text>`;
    }),
  ];
}

function barOf(figure: HeatFigure, { left, width }: Layout, top: number, hatch: string): string[] {
  const { inks, scale, what } = figure;
  const from = Math.min(left, width - EDGE - 360);
  const length = Math.min(260, width - from - EDGE - 90);
  const words = `font-family="${escaped(figure.sans)}" font-size="12" fill="${inks.faint}"`;
  const steps = 64;
  const drawn = [`<g data-part="bar"><g shape-rendering="crispEdges">`];
  for (let step = 0; step < steps; step++) {
    const colour = hex(shadeOf((step + 0.5) / steps, figure.colours, figure.theme));
    drawn.push(
      `<rect x="${round(from + (step * length) / steps)}" y="${top}" width="${round(length / steps + 0.2)}" height="${BAR}" fill="${colour}"/>`,
    );
  }
  drawn.push(
    `</g><rect x="${round(from)}" y="${top}" width="${round(length)}" height="${BAR}" fill="none" stroke="${inks.hatch}"/>`,
  );
  for (const { share, value } of ticksOf(scale)) {
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    drawn.push(
      `<text x="${round(from + share * length)}" y="${top + BAR + 14}" text-anchor="${anchor}" ${words}>${escaped(tickText(value, scale, what))}</text>`,
    );
  }
  drawn.push(
    `<text x="${round(from)}" y="${top + BAR + 14 + LINE}" ${words}>${escaped(t.heat.barWords[scale.kind](t.heat.what(what)))}</text>`,
  );
  if (figure.allowed !== null) {
    const at = from + length + 20;
    drawn.push(
      `<rect x="${round(at)}" y="${top}" width="20" height="${BAR}" fill="url(#${hatch})" stroke="${inks.hatch}"/>`,
      `<text x="${round(at + 27)}" y="${top + 10}" ${words}>${escaped(t.heat.masked)}</text>`,
    );
  }
  return [...drawn, "</g>"];
}

/** Lines of words that fit the room; a word that is longer than a line is broken. */
export function wrapped(text: string, measure: (text: string) => number, room: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && measure(longer) <= room) lines[lines.length - 1] = longer;
    else lines.push(...broken(word, measure, room));
  }
  return lines;
}

function broken(word: string, measure: (text: string) => number, room: number): string[] {
  const parts = [""];
  for (const letter of word) {
    if (parts.at(-1) !== "" && measure(parts.at(-1) + letter) > room) parts.push(letter);
    else parts[parts.length - 1] += letter;
  }
  return parts;
}

/** Return the numbers as a table for spreadsheets, tabs between them; a masked cell is empty. */
export function numbersTable(cells: Matrix, allowed: Matrix | null, queries: string[], keys: string[]): string {
  const plain = (name: string): string => name.replace(/[\t\n\r]/g, " ");
  const rows = queries.map((name, row) => {
    const numbers = Array.from({ length: cells.columns }, (_, column) => {
      const at = row * cells.columns + column;
      return allowed !== null && !(allowed.data[at] > 0) ? "" : String(Number(cells.data[at].toPrecision(7)));
    });
    return [plain(name), ...numbers].join("\t");
  });
  return [["", ...keys.map(plain)].join("\t"), ...rows].join("\n") + "\n";
}

function shareAt(figure: HeatFigure, row: number, column: number): number {
  const value = figure.cells.data[row * figure.cells.columns + column];
  return shareOf(figure.maxima === null ? value : value / (figure.maxima[row] || 1), figure.scale);
}

function isMasked({ allowed }: HeatFigure, row: number, column: number): boolean {
  return allowed !== null && !(allowed.data[row * allowed.columns + column] > 0);
}

function imageOf(figure: HeatFigure): string {
  const { rows, columns } = figure.cells;
  const colours = new Uint32Array(table(figure.colours, figure.theme).buffer);
  const pixels = new Uint32Array(rows * columns);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      pixels[row * columns + column] = colours[Math.round(shareAt(figure, row, column) * 255)];
  return figure.image(pixels, columns, rows);
}

function toldAt(figure: HeatFigure, row: number, column: number): string {
  const value = figure.cells.data[row * figure.cells.columns + column];
  const number = isShare(figure.scale, figure.what) ? finePercent(value) : local(String(Number(value.toPrecision(4))));
  return t.heat.told(figure.queries[row], figure.keys[column], number);
}

function fontOf(figure: HeatFigure, size: number, weight = 400): string {
  return `${weight} ${size}px ${figure.sans}`;
}

function tokenFont(figure: HeatFigure): string {
  return `12px ${figure.mono}`;
}

/** "rgb(1, 2, 3)" is written as "#010203": drawing programs read both, and a file of cells is half as long. */
function hex(colour: string): string {
  const channels = (colour.match(/\d+/g) ?? []).slice(0, 3).map(Number);
  return `#${channels.map((one) => one.toString(16).padStart(2, "0")).join("")}`;
}

function round(value: number): string {
  return String(Math.round(value * 100) / 100);
}

/** A short name for an element that is another one in another drawing. */
function sum(text: string): string {
  let found = 7;
  for (const letter of text) found = (found * 31 + letter.codePointAt(0)!) % 0xffffff;
  return found.toString(36);
}

/** Text in XML, without the characters that XML has no way to write. */
function escaped(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd") // eslint-disable-line no-control-regex
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;")
    .replace(/>/g, "&gt;")
    .replace(/"/g, "&quot;");
}
