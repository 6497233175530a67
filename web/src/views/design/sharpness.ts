/** How far the wanted scores stand above the others, and what softmax makes of it; as clearhead.craft has it. */

import { argmax, softmax } from "../../lib/arithmetic";

/** One query that wants something: the least a wanted score is above the best other, and how many there are of both. */
export interface Case {
  query: number;
  margin: number;
  wanted: number;
  unwanted: number;
}

export type Weighing = "softmax" | "argmax";

/** Of each query that wants a key; `masked` has −inf where it may not look. */
export function casesOf(masked: number[][], wanted: boolean[][]): Case[] {
  return masked.flatMap((row, query) => {
    const inside = row.filter((_, key) => wanted[query][key]);
    const others = row.filter((score, key) => !wanted[query][key] && score !== -Infinity);
    if (inside.length === 0) return [];
    const margin = others.length === 0 ? Infinity : Math.min(...inside) - Math.max(...others);
    return [{ query, margin: tidy(margin), wanted: inside.length, unwanted: others.length }];
  });
}

/** The least margin; Infinity where nothing else may be looked at. */
export function marginOf(cases: Case[]): number {
  return Math.min(...cases.map((one) => one.margin));
}

/** The scale at which softmax puts 1 − ε on the wanted keys if all others are `margin` below; Infinity if none does. */
export function scaleFor({ margin, wanted, unwanted }: Omit<Case, "query">, epsilon: number): number {
  const odds = (unwanted * (1 - epsilon)) / (wanted * epsilon);
  if (odds <= 1) return 0;
  return margin > 0 ? Math.log(odds) / margin : Infinity;
}

/** The scale that is enough for every query. */
export function neededFor(cases: Case[], epsilon: number): number {
  return Math.max(0, ...cases.map((one) => scaleFor(one, epsilon)));
}

/** The query that needs most. */
export function hardest(cases: Case[], epsilon: number): Case | null {
  return cases.reduce<Case | null>(
    (worst, one) => (worst === null || scaleFor(one, epsilon) > scaleFor(worst, epsilon) ? one : worst),
    null,
  );
}

/** The weights of all rows. Equal scores share, under argmax as under softmax. */
export function weightsOf(masked: number[][], weighing: Weighing, scale: number): number[][] {
  return masked.map((row) =>
    weighing === "argmax" ? argmax(row, "average").weight : softmax(row.map((one) => scaled(one, scale))).weight,
  );
}

/** What lies on the wanted keys, of each query that has any. */
export function onWanted(weights: ArrayLike<number>[], wanted: boolean[][]): number[] {
  return wanted.flatMap((row, query) =>
    row.some(Boolean) ? [row.reduce((sum, is, key) => sum + (is ? weights[query][key] : 0), 0)] : [],
  );
}

/** How many queries have a wanted key, and nothing else, as their best. */
export function winners(cases: Case[]): number {
  return cases.filter((one) => one.margin > 0).length;
}

/** The least weight on what is wanted, over scales from 0 to `most`. */
export function curveOf(masked: number[][], wanted: boolean[][], most: number, steps = 60): [number, number][] {
  return Array.from({ length: steps + 1 }, (_, step) => {
    const scale = (most * step) / steps;
    return [scale, Math.min(1, ...onWanted(weightsOf(masked, "softmax", scale), wanted))];
  });
}

/** What is blocked stays so at scale 0, where −inf × 0 is no number. */
function scaled(score: number, scale: number): number {
  return score === -Infinity ? score : score * scale;
}

/** Without what is left of adding decimals: 0.1 + 0.2 − 0.3 is no margin. */
function tidy(margin: number): number {
  return Number.isFinite(margin) ? Math.round(margin * 1e9) / 1e9 : margin;
}
