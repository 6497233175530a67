/** How a number becomes a colour: linear, by its square root or its logarithm, or as a share of its row's highest. */

import { topOf } from "./colours";
import type { Matrix } from "./source";

export interface ColourScale {
  low: number;
  high: number;
  /** How a colour goes from the low end to the high one; by "row", numbers are shares of the highest of their row. */
  kind: "linear" | "root" | "log" | "row";
  /** Whether there are numbers past the end: they have its colour. */
  clipped: boolean;
}

/** The scales that a reader can choose for a map. */
export const SCALES = ["linear", "row", "log"] as const;
export type ScaleChoice = (typeof SCALES)[number];

/** Beyond this many keys a map has a scale for each row: on one scale for all, most rows would be blank. */
export const MANY_KEYS = 64;
/** A logarithmic scale ends this many powers of ten below its high end. */
export const DECADES = 4;

/** Return the scale of a map: the one that was asked for, else linear for few keys and per row for many. */
export function chooseScale(asked: string | null, keys: number): ScaleChoice {
  return SCALES.find((name) => name === asked) ?? (keys > MANY_KEYS ? "row" : "linear");
}

/** A scale between two given numbers. */
export function linear(low: number, high: number): ColourScale {
  return { low, high, kind: "linear", clipped: false };
}

/** Return the scale for weights that a choice stands for; `weights` has the highest of every row. */
export function scaleFor(choice: ScaleChoice, weights: Matrix): ColourScale {
  if (choice === "row") return { low: 0, high: 1, kind: "row", clipped: false };
  if (choice === "linear") return { ...weightScale(weights), kind: "linear" };
  const high = topOf(Math.max(0, ...rowMaxima(weights)));
  return { low: high / 10 ** DECADES, high, kind: "log", clipped: false };
}

/** Where a number lies on a scale, from 0 to 1. */
export function shareOf(value: number, { low, high, kind }: ColourScale): number {
  if (!(high > low) || Number.isNaN(value)) return 0;
  if (kind === "log") return value > low ? Math.min(1, Math.log(value / low) / Math.log(high / low)) : 0;
  const share = Math.min(1, Math.max(0, (value - low) / (high - low)));
  return kind === "root" ? Math.sqrt(share) : share;
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
  const kind = quantile(maxima, 0.5) < high / 2 ? "root" : "linear";
  return { low: 0, high, kind, clipped: highest > high * (1 + 1e-6) };
}

/** A scale for differences: as far below 0 as above. */
export function differenceScale(numbers: Matrix): ColourScale {
  const high = topOf(numbers.data.reduce((most, one) => Math.max(most, Math.abs(one) || 0), 0));
  return linear(-high, high);
}

/** The numbers beside a colour bar, each with its place along it. */
export function ticksOf(scale: ColourScale): { share: number; value: number }[] {
  const { low, high, kind } = scale;
  const middle = (low + high) / 2;
  const values =
    kind === "log" ? [low, Math.sqrt(low * high), high] : kind === "root" ? [low, high / 4, high] : [low, middle, high];
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
