/** What two runs have in common, and what not. */

import type { Candidate, Matrix, Meta, RunFacts } from "./source";
import type { TileLoader } from "./tilestore";
import { percent } from "./words";

/** What the model says at each place. */
export function saidBy(rows: readonly (readonly Candidate[])[]): string[] {
  return rows.map((row) => row[0]?.text ?? "");
}

/** Whether the two say something else, place by place; where only one of them has the place, they do. */
export function differing(before: readonly string[], after: readonly string[]): boolean[] {
  const places = Math.max(before.length, after.length);
  return Array.from({ length: places }, (_, place) => before[place] !== after[place]);
}

/** The place that was chosen; else a blank, else the first at which the two say something else, else where text goes on. */
export function placeOf(chosen: string | null, run: RunFacts | null, one: Meta | null, other: Meta | null): number {
  const [before, after] = [one, other].map((meta) => saidBy(meta?.candidates ?? []));
  const last = Math.max(0, after.length - 1);
  if (chosen !== null && /^\d+$/.test(chosen)) return Math.min(Number(chosen), last);
  const blank = run?.place === "blank" ? (other?.sides.encoder?.tokens.indexOf("<mask>") ?? -1) : -1;
  if (blank >= 0) return Math.min(blank, last);
  const first = after.findIndex((said, place) => said !== before[place]);
  return first >= 0 ? first : run?.place === "last" ? last : 0;
}

/** A probability; `below`: only that it is less than `p` is known, as the token is not among the likeliest. */
export interface Share {
  p: number;
  below: boolean;
}

/** What is known of a token's probability at a place. */
export function shareOf(id: number, row: readonly Candidate[]): Share {
  const found = row.find((one) => one.id === id);
  return found ? { p: found.p, below: false } : { p: row.at(-1)?.p ?? 1, below: true };
}

/** "4.2 %", or "< 0.9 %" of a token that is not among the likeliest. */
export function shareText({ p, below }: Share): string {
  return below ? `< ${percent(p).replace("<", "")}` : percent(p);
}

/** How a probability changes, in words: "+4.2 %"; "≈" where one of the two is only known to be small. */
export function changeText(before: Share, after: Share): string {
  const by = (after.below ? 0 : after.p) - (before.below ? 0 : before.p);
  return `${before.below || after.below ? "≈ " : ""}${by < 0 ? "−" : "+"}${percent(Math.abs(by))}`;
}

export interface Moved {
  id: number;
  text: string;
  before: Share;
  after: Share;
}

/** The likeliest tokens of both runs, the likeliest of either first. */
export function moved(before: readonly Candidate[], after: readonly Candidate[], most: number): Moved[] {
  const found = new Map([...before, ...after].map(({ id, text }) => [id, text]));
  const all = [...found].map(([id, text]) => ({ id, text, before: shareOf(id, before), after: shareOf(id, after) }));
  const known = (share: Share): number => (share.below ? 0 : share.p);
  const highest = (one: Moved): number => Math.max(known(one.before), known(one.after));
  return all.sort((one, other) => highest(other) - highest(one)).slice(0, most);
}

/** The second less the first, number by number. */
export function difference(one: Matrix, other: Matrix): Matrix {
  const data = Float32Array.from(other.data, (value, place) => apart(value, one.data[place]));
  return { rows: one.rows, columns: one.columns, data };
}

/** The tiles of the second less those of the first. */
export function differenceTiles(one: TileLoader, other: TileLoader): TileLoader {
  const made = async (...where: Parameters<TileLoader>): Promise<Matrix> =>
    difference(...((await Promise.all([one(...where), other(...where)])) as [Matrix, Matrix]));
  return Object.assign(made, other.allowed ? { allowed: other.allowed } : {});
}

/** Two numbers that are both −∞ do not differ. */
function apart(value: number, from: number): number {
  return value === from ? 0 : value - from;
}
