/** A vector as a strip of coloured cells. */

import { type Shade, shadeOf } from "../../lib/colours";

const LEVELS = 41;
const shades = new Map<Shade, string[]>();

/** The colour of every number of a vector; `most` is the number at the scale's ends. */
export function cellColours(vector: ArrayLike<number>, most: number, theme: Shade): string[] {
  let known = shades.get(theme);
  if (known === undefined) {
    known = Array.from({ length: LEVELS }, (_, level) => shadeOf(level / (LEVELS - 1), "signed", theme));
    shades.set(theme, known);
  }
  const colours = new Array<string>(vector.length);
  for (let index = 0; index < vector.length; index++) colours[index] = known[levelOf(vector[index], most)];
  return colours;
}

function levelOf(value: number, most: number): number {
  const share = most > 0 ? Math.min(1, Math.max(-1, value / most)) : 0;
  return Math.round(((share + 1) / 2) * (LEVELS - 1));
}

/** The largest size among numbers, to share one scale between strips. */
export function largest(...vectors: ArrayLike<number>[]): number {
  let most = 0;
  for (const vector of vectors) {
    for (let index = 0; index < vector.length; index++) most = Math.max(most, Math.abs(vector[index]));
  }
  return most;
}

/** One row of a matrix of vectors. */
export function rowOf(matrix: { columns: number; data: Float32Array }, row: number): Float32Array {
  return matrix.data.subarray(row * matrix.columns, (row + 1) * matrix.columns);
}
