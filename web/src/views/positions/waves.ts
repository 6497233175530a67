/** Tables of positions read as waves: which columns are one pair, how fast a pair turns, what to show first. */

import { countText, local } from "../../lib/local";

export type Table = number[][];

export interface Pair {
  /** The columns of its sine and its cosine. */
  sine: number;
  cosine: number;
}

/** How sines and cosines lie in a table: side by side, or all sines before all cosines; null if it has none. */
export function pairing(table: Table): ((pair: number) => Pair) | null {
  const [first] = table;
  if (!first || first.length < 2 || first.length % 2) return null;
  const half = first.length / 2;
  const layouts: ((pair: number) => Pair)[] = [
    (pair) => ({ sine: 2 * pair, cosine: 2 * pair + 1 }),
    (pair) => ({ sine: 2 * pair + 1, cosine: 2 * pair }),
    (pair) => ({ sine: pair, cosine: pair + half }),
    (pair) => ({ sine: pair + half, cosine: pair }),
  ];
  return layouts.find((layout) => startsAtRest(first, layout, Math.floor(half))) ?? null;
}

/** At position 0 every hand points to sine 0, cosine 1. */
function startsAtRest(first: number[], layout: (pair: number) => Pair, pairs: number): boolean {
  for (let pair = 0; pair < pairs; pair++) {
    const { sine, cosine } = layout(pair);
    if (Math.abs(first[sine]) > 1e-5 || Math.abs(first[cosine] - 1) > 1e-5) return false;
  }
  return true;
}

/** Where a pair's hand stands at a position, in radians. */
export function angleAt(table: Table, pair: Pair, position: number): number {
  return Math.atan2(table[position][pair.sine], table[position][pair.cosine]);
}

/** After how many positions a pair has turned once: 2π for the first of a sinusoid. */
export function wavelength(table: Table, pair: Pair): number {
  const turn = Math.abs(angleAt(table, pair, Math.min(1, table.length - 1)));
  return turn === 0 ? Infinity : (2 * Math.PI) / turn;
}

/** A few of so many, the first and the last among them, closer together at the beginning where waves differ most. */
export function spread(count: number, wanted = 6): number[] {
  const places = Array.from({ length: wanted }, (_, index) =>
    Math.round((index / Math.max(1, wanted - 1)) ** 1.5 * (count - 1)),
  );
  return [...new Set(places)];
}

/** The columns whose numbers are not all the same. */
export function columnsThatVary(table: Table): number[] {
  const [first] = table;
  return (first ?? [])
    .map((_, column) => column)
    .filter((column) => table.some((row) => row[column] !== first[column]));
}

/** One more, or one fewer if it was there; never none, never more than can be read. */
export function toggled(chosen: number[], one: number, most = 8): number[] {
  if (chosen.includes(one)) return chosen.length > 1 ? chosen.filter((each) => each !== one) : chosen;
  const room = chosen.length < most ? chosen : chosen.slice(1);
  return [...room, one].sort((a, b) => a - b);
}

/** A table such as one starts from before training: small noise, always the same. */
export function noise(rows: number, columns: number): Table {
  let state = 20250;
  const next = (): number => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
  const gaussian = (): number => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()) * 0.02;
  return Array.from({ length: rows }, () => Array.from({ length: columns }, gaussian));
}

/** The mean cosine of two places so far apart, for every distance. */
export function byDistance(table: Table): number[] {
  const unit = table.map((row) => {
    const size = Math.hypot(...row) || 1;
    return row.map((value) => value / size);
  });
  return unit.map((_, distance) => {
    let sum = 0;
    for (let at = 0; at + distance < unit.length; at++) {
      sum += unit[at].reduce((all, value, index) => all + value * unit[at + distance][index], 0);
    }
    return sum / (unit.length - distance);
  });
}

/** "6.3", "628", "62,832" */
export function roughly(value: number): string {
  if (!Number.isFinite(value)) return "∞";
  return value < 100 ? local(value.toFixed(1)) : countText(Math.round(value));
}
