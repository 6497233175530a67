/** How a number becomes a colour: linear or by its square root, up to an end that the legend states. */

import { topOf } from "./colours";
import type { Matrix } from "./source";

export interface ColourScale {
  low: number;
  high: number;
  /** Whether a colour goes by the square root of the number, so that small ones are told apart. */
  root: boolean;
  /** Whether there are numbers past the end: they have its colour. */
  clipped: boolean;
}

/** A scale between two given numbers. */
export function linear(low: number, high: number): ColourScale {
  return { low, high, root: false, clipped: false };
}

/** Where a number lies on a scale, from 0 to 1. */
export function shareOf(value: number, { low, high, root }: ColourScale): number {
  if (!(high > low) || Number.isNaN(value)) return 0;
  const share = Math.min(1, Math.max(0, (value - low) / (high - low)));
  return root ? Math.sqrt(share) : share;
}

/**
 * A scale on which most rows of weights can be read.
 *
 * In a causal map row 0 has weight 1 on its only key, and row 400 some thousandths on each of its own. So where the
 * highest weight of nine rows in ten is less than a quarter of the highest of all, the colours end there; and where half
 * of the rows stay below half of the end, colours go by the square root.
 */
export function weightScale(weights: Matrix): ColourScale {
  const maxima = rowMaxima(weights).sort((a, b) => a - b);
  const highest = maxima.at(-1);
  if (highest === undefined) return linear(0, 1);
  const most = quantile(maxima, 0.9);
  const high = topOf(most * 4 >= highest ? highest : most);
  return { low: 0, high, root: quantile(maxima, 0.5) < high / 2, clipped: highest > high * (1 + 1e-6) };
}

/** A scale for differences: as far below 0 as above. */
export function differenceScale(numbers: Matrix): ColourScale {
  const high = topOf(numbers.data.reduce((most, one) => Math.max(most, Math.abs(one) || 0), 0));
  return linear(-high, high);
}

/** The numbers beside a colour bar, each with its place along it. */
export function ticksOf(scale: ColourScale): { share: number; value: number }[] {
  const middle = (scale.low + scale.high) / 2;
  const values = scale.root ? [scale.low, scale.high / 4, scale.high] : [scale.low, middle, scale.high];
  return values.map((value) => ({ value, share: shareOf(value, scale) }));
}

/** Of each row that has a weight, the highest: a row that is all masked says nothing. */
function rowMaxima({ rows, columns, data }: Matrix): number[] {
  return Array.from({ length: rows }, (_, row) => {
    let most = 0;
    for (let column = 0; column < columns; column++) most = Math.max(most, data[row * columns + column] || 0);
    return most;
  }).filter((most) => most > 0);
}

function quantile(sorted: number[], share: number): number {
  return sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
}
