/** A design as edits of a head's scores, such that softmax sees what was designed. */

import type { EditJson, SiteMeta, StepEdit } from "../../lib/source";
import { isSwap } from "../../lib/edits";
import type { Weighing } from "./sharpness";

/** What the server takes at once. */
export const MOST_EDITS = 1000;
/** So sharp that softmax is argmax: a score that is 0.1 lower has e^−100 of the weight. */
export const HARD = 1000;

/** The factor between what was designed and the score that the head must have. */
export function factorOf(site: Pick<SiteMeta, "scale">, head: number, weighing: Weighing, scale: number): number {
  return (weighing === "argmax" ? HARD : scale) / (site.scale[head] ?? site.scale[0] ?? 1);
}

/** One edit for the commonest score, one for each column that has another throughout, one for each other cell. */
export function editsOf(at: string, head: number, scores: number[][], factor: number): StepEdit[] {
  const values = scores.map((row) => row.map((score) => rounded(score * factor)));
  const common = commonest(values.flat());
  const edits: StepEdit[] = [{ at, step: "score", head, to: common }];
  const columns = (values[0] ?? []).map((first, key) => (values.every((row) => row[key] === first) ? first : null));
  columns.forEach((to, key) => {
    if (to !== null && to !== common) edits.push({ at, step: "score", head, key, to });
  });
  values.forEach((row, query) =>
    row.forEach((to, key) => {
      if (columns[key] === null && to !== common) edits.push({ at, step: "score", head, query, key, to });
    }),
  );
  return edits;
}

/** Whether an edit changes scores of this head. */
export function isOfHead(edit: EditJson, at: string, head: number): boolean {
  return !isSwap(edit) && edit.at === at && edit.step === "score" && edit.head === head;
}

export function withoutHead(edits: readonly EditJson[], at: string, head: number): EditJson[] {
  return edits.filter((edit) => !isOfHead(edit, at, head));
}

/** Heads whose scores are set as a whole, as a design does it. */
export function designed(edits: readonly EditJson[]): { at: string; head: number }[] {
  return edits.flatMap((edit) => {
    const whole = !isSwap(edit) && edit.step === "score" && edit.head != null && edit.to != null;
    return whole && edit.query == null && edit.key == null ? [{ at: edit.at, head: edit.head! }] : [];
  });
}

/** What the decoder reads as a target that is asked for: without the start, which it is given anyway. */
export function held(ids: number[]): number[] {
  return ids.slice(1);
}

/** The most that two matrices differ by, cell by cell. */
export function apart(one: ArrayLike<number>[], other: ArrayLike<number>[]): number {
  let most = 0;
  one.forEach((row, query) => {
    for (let key = 0; key < row.length; key++) most = Math.max(most, Math.abs(row[key] - other[query][key]));
  });
  return most;
}

/** Six digits: enough for the numbers that the model reckons with, and short in the address. */
function rounded(value: number): number {
  return Number(value.toPrecision(6));
}

function commonest(values: number[]): number {
  const counts = new Map<number, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].reduce((best, one) => (one[1] > best[1] ? one : best), [0, 0])[0];
}
