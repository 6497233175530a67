/** The arithmetic of the sampling view: what is asked for, what is shown of it, and where a random number falls. */

import type { RunFacts, Sampled, SampleStep } from "../../lib/source";

export const MODES = ["greedy", "sample", "beam"] as const;
export type Mode = (typeof MODES)[number];

/** As `clearhead generate` has them. */
export const TEMPERATURE = 0.8;
export const SEED = 0;
export const MOST = 200;

/** The method of an address; without one, a run that continues texts is sampled, and any other searched with a beam.
 *
 * A compiled program has one answer, so it opens on the beam too. */
export function modeOf(own: Record<string, string>, run: RunFacts | null): Mode {
  const found = MODES.find((mode) => mode === own.mode);
  if (found !== undefined) return found;
  if (own.beam !== undefined) return "beam";
  return run?.target === "continues" && run.program === undefined ? "sample" : "beam";
}

/** The settings of an address, and how many tokens have been added; what cannot be is as if it were not there. */
export function settingsOf(own: Record<string, string>) {
  const whole = (name: string, least: number, most: number): number | null => {
    const value = Number(own[name] ?? "x");
    return Number.isInteger(value) && value >= least && value <= most ? value : null;
  };
  const between = (name: string, low: number, high: number, usual: number): number => {
    const value = Number(own[name] ?? "x");
    return value > low && value <= high ? value : usual;
  };
  return {
    temperature: between("temperature", 0, 100, TEMPERATURE),
    topK: whole("top_k", 1, 1_000_000),
    topP: between("top_p", 0, 1, 1),
    seed: whole("seed", 0, Number.MAX_SAFE_INTEGER) ?? SEED,
    tokens: whole("tokens", 0, MOST) ?? 0,
  };
}

const BLOCKS = [8, 32, 100, MOST];

/** How many tokens to ask for, so that those added and the next one are there: the same for a few more of them, so
 * that not every one is a request. */
export function blockFor(tokens: number): number {
  return BLOCKS.find((block) => block > tokens) ?? MOST;
}

/** How many tokens are shown, and whether another can be added. */
export function progressOf(sampled: Sampled, tokens: number): { shown: number; done: "" | "ended" | "full" } {
  const all = sampled.steps.length;
  const shown = Math.min(tokens, all);
  if (shown < all) return { shown, done: "" };
  if (sampled.ended || all === 0) return { shown, done: "ended" };
  return { shown, done: all >= Math.min(MOST, sampled.room) ? "full" : "" };
}

/** The text of the first tokens; characters, not code units, are counted. */
export function textOf(sampled: Sampled, shown: number): string {
  return shown === 0 ? "" : [...sampled.text].slice(0, sampled.ends[shown - 1]).join("");
}

export interface Stretch {
  id: number | null;
  text: string;
  from: number;
  to: number;
}

/** The probabilities side by side from 0 to 1, the likeliest first; null is all other tokens together. */
export function stretchesOf(step: SampleStep): Stretch[] {
  const drawable = step.candidates
    .filter((one) => one.after > 0 && (one.id !== step.token || isOrdered(step)))
    .sort((one, other) => other.after - one.after);
  const found: Stretch[] = [];
  let reached = 0;
  for (const { id, text, after } of drawable) {
    found.push({ id, text, from: reached, to: reached + after });
    reached += after;
  }
  if (!isOrdered(step)) {
    found.push({ id: null, text: "", from: reached, to: step.begins });
    found.push({ id: step.token, text: step.text, from: step.begins, to: step.begins + step.after });
    reached = step.begins + step.after;
  }
  if (reached < 0.9999) found.push({ id: null, text: "", from: reached, to: 1 });
  return found;
}

/** Whether the token that came is among the likeliest, without others between. */
function isOrdered(step: SampleStep): boolean {
  const likelier = step.candidates.filter((one) => one.after > step.after);
  const sum = likelier.reduce((total, one) => total + one.after, 0);
  return step.begins - sum < 1e-4 + step.after * 0.5;
}
