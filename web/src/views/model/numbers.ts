/** What the picture of the model is drawn from, brought together as it arrives. */

import type { SideLayout } from "../../lib/layout";
import type { Matrix, Stream } from "../../lib/source";
import type { Span } from "../../lib/tiles";

export interface Curve {
  query: number;
  key: number;
  weight: number;
}

const LEAST = 0.05;
const MOST = 140;

/** Weights between two spans of tokens. */
export interface Cut extends Matrix {
  queries: Span;
  keys: Span;
}

/** The strongest weights of a cut, the strongest last, so that it is drawn on top. */
export function curvesOf(cut: Cut): Curve[] {
  const found: Curve[] = [];
  for (let row = 0; row < cut.rows; row++)
    for (let column = 0; column < cut.columns; column++) {
      const weight = cut.data[row * cut.columns + column];
      if (weight >= LEAST) found.push({ query: cut.queries.first + row, key: cut.keys.first + column, weight });
    }
  return found
    .sort((a, b) => b.weight - a.weight)
    .slice(0, MOST)
    .reverse();
}

/** A point of a lane: from here on the vector is this long, and this like its embedding. */
export interface Knot {
  x: number;
  norm: number;
  cosine: number;
}

/** The knots of one token's lane: at every box out of which a value of the stream comes. */
export function knotsOf(side: SideLayout, stream: Stream | undefined, token: number): Knot[] {
  if (stream === undefined) return [];
  return side.boxes.flatMap((box) => {
    const row = stream.rows.find((one) => one.name === box.out);
    const known = row !== undefined && token < row.norm.length;
    return known ? [{ x: box.x + box.width, norm: row.norm[token], cosine: row.cosine[token] }] : [];
  });
}

/** How thick a lane is at a norm: by its logarithm, as norms grow many times over along the way. */
export function thickness(norm: number, least: number, most: number): number {
  if (!(most > least) || norm <= 0) return 2.5;
  const share = Math.log(norm / least) / Math.log(most / least);
  return 1.6 + 5 * Math.min(1, Math.max(0, share));
}

/** The shortest and the longest vector of the stream on all sides. */
export function normRange(streams: (Stream | undefined)[]): [number, number] {
  const norms = streams.flatMap((stream) => stream?.rows.flatMap((row) => row.norm) ?? []).filter((norm) => norm > 0);
  let [least, most] = [Infinity, 0];
  for (const norm of norms) [least, most] = [Math.min(least, norm), Math.max(most, norm)];
  return [least, most];
}

/** The way of a curve: out of a key's lane, into a query's, level at both ends. */
export function curvePath(x0: number, y0: number, x1: number, y1: number): string {
  const bend = (x1 - x0) * 0.55;
  return `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
}
