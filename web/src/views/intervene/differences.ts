/** What two runs have in common, and what not. */

import type { Candidate, Matrix } from "../../lib/source";

export interface Marks {
  /** True where the token is not in the other run's text, in order. */
  before: boolean[];
  after: boolean[];
}

const LONGEST = 1000;

/** The tokens outside the longest common row of tokens; place by place where the texts are very long. */
export function differing(before: readonly string[], after: readonly string[]): Marks {
  if (Math.max(before.length, after.length) > LONGEST) return placewise(before, after);
  const common = lengths(before, after);
  const marks: Marks = { before: before.map(() => true), after: after.map(() => true) };
  let [i, j] = [0, 0];
  while (i < before.length && j < after.length) {
    if (before[i] === after[j]) {
      marks.before[i++] = false;
      marks.after[j++] = false;
    } else if (common[i + 1][j] >= common[i][j + 1]) i++;
    else j++;
  }
  return marks;
}

export interface Moved {
  id: number;
  text: string;
  /** null where the token is not among the likeliest of that run. */
  before: number | null;
  after: number | null;
}

/** The likeliest tokens of both runs, the likeliest of either first. */
export function moved(before: readonly Candidate[], after: readonly Candidate[], most: number): Moved[] {
  const found = new Map<number, Moved>();
  for (const { id, text, p } of before) found.set(id, { id, text, before: p, after: null });
  for (const { id, text, p } of after) found.set(id, { id, text, before: found.get(id)?.before ?? null, after: p });
  const highest = (one: Moved): number => Math.max(one.before ?? 0, one.after ?? 0);
  return [...found.values()].sort((one, other) => highest(other) - highest(one)).slice(0, most);
}

/** The second less the first, number by number. */
export function difference(one: Matrix, other: Matrix): Matrix {
  const data = Float32Array.from(other.data, (value, place) => apart(value, one.data[place]));
  return { rows: one.rows, columns: one.columns, data };
}

/** Two numbers that are both −∞ do not differ. */
function apart(value: number, from: number): number {
  return value === from ? 0 : value - from;
}

function placewise(before: readonly string[], after: readonly string[]): Marks {
  return {
    before: before.map((token, place) => token !== after[place]),
    after: after.map((token, place) => token !== before[place]),
  };
}

/** common[i][j]: how long the longest common row is from place i of the one and j of the other on. */
function lengths(before: readonly string[], after: readonly string[]): Uint16Array[] {
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      const skip = Math.max(common[i + 1][j], common[i][j + 1]);
      common[i][j] = before[i] === after[j] ? common[i + 1][j + 1] + 1 : skip;
    }
  }
  return common;
}
