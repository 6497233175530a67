/** The time of the four steps: 0 is the tokens alone, 1 to 4 are the ends of the steps; all motion is a function of it. */

export const LAST = 4;

export type StepNumber = 1 | 2 | 3 | 4;
/** When all values are in the sum, and it is the output. */
export const SUMMED = 3.85;

/** The step that a time belongs to; before anything has happened it is the first. */
export function stepAt(time: number): StepNumber {
  return Math.min(LAST, Math.max(1, Math.ceil(time - 1e-9))) as StepNumber;
}

/** The end of a step after this time, or the last. */
export function nextStop(time: number): number {
  return Math.min(LAST, Math.floor(time + 1e-6) + 1);
}

/** The end of a step before this time, or the beginning. */
export function previousStop(time: number): number {
  return Math.max(0, Math.ceil(time - 1e-6) - 1);
}

/** How much of a phase is over: 0 before it, 1 after it, slow at both ends. */
export function progress(time: number, from: number, to: number): number {
  const share = Math.min(1, Math.max(0, (time - from) / (to - from)));
  return share * share * (3 - 2 * share);
}

/** The progress of one of several things that start one after another within a phase, and overlap. */
export function staggered(time: number, from: number, to: number, index: number, count: number): number {
  const each = (to - from) * (count > 1 ? 0.45 : 1);
  const start = count > 1 ? from + ((to - from - each) * index) / (count - 1) : from;
  return progress(time, start, start + each);
}

/** A number on its way from one value to another; what is not finite changes at once, half way. */
export function between(from: number | null, to: number | null, share: number): number | null {
  if (from === null || to === null) return share < 0.5 ? from : to;
  return from + (to - from) * share;
}
