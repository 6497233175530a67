/** Two rows of tokens, and bands from one token of the lower row to all of the upper. */

import { piece } from "../../lib/words";

export interface Box {
  text: string;
  x: number;
  width: number;
}

export const ROW = { character: 7.95, padding: 8, gap: 5 };

/** Tokens beside each other, in their order. */
export function layRow(tokens: readonly string[]): Box[] {
  let x = 0;
  return tokens.map((token) => {
    const text = piece(token);
    const box = { text, x, width: Math.max(2, [...text].length) * ROW.character + 2 * ROW.padding };
    x += box.width + ROW.gap;
    return box;
  });
}

export function rowWidth(boxes: readonly Box[]): number {
  const last = boxes.at(-1);
  return last === undefined ? 0 : last.x + last.width;
}

export function middle(box: Box): number {
  return box.x + box.width / 2;
}

/** A band as wide as its share: from the lower token's middle, all bands side by side, to the upper token. */
export function bands(
  weights: readonly number[],
  upper: readonly Box[],
  lower: Box,
  top: number,
  bottom: number,
): Band[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const spread = lower.width - 8;
  let from = lower.x + 4;
  return weights.map((weight, index) => {
    const foot = (spread * weight) / total;
    const head = Math.max(0, upper[index].width - 8) * weight;
    const centre = middle(upper[index]);
    const path = band([from, from + foot], [centre - head / 2, centre + head / 2], top, bottom);
    from += foot;
    return { index, weight, path };
  });
}

export interface Band {
  index: number;
  weight: number;
  path: string;
}

/** The mean of the layers' weights, source token by source token. */
export function meanOf(layers: readonly (readonly number[])[]): number[] {
  if (layers.length === 0) return [];
  return layers[0].map((_, place) => layers.reduce((sum, layer) => sum + layer[place], 0) / layers.length);
}

function band(foot: [number, number], head: [number, number], top: number, bottom: number): string {
  const half = (top + bottom) / 2;
  const [left, right] = foot.map(tidy);
  const [start, end] = head.map(tidy);
  return (
    `M${left},${bottom}C${left},${half} ${start},${half} ${start},${top}H${end}` +
    `C${end},${half} ${right},${half} ${right},${bottom}Z`
  );
}

function tidy(value: number): number {
  return Math.round(value * 100) / 100;
}
