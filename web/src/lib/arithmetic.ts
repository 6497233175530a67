/** The arithmetic of attention on plain arrays: what the page shows is what this computes. −inf stands for "blocked". */

/** How a row of scores becomes weights: what `Weighting.page_arithmetic` of a part says. */
export type Weighting =
  | { kind: "softmax"; temperature: number }
  | { kind: "argmax"; ties: "first" | "last" | "average"; tolerance: number }
  | { kind: "kernelized"; normalised: boolean }
  | { kind: "sigmoid"; offset: number | null }
  | { kind: "sparsemax" };

/** A row weighed: the weights, and the numbers they came by. */
export interface Weighed {
  weight: number[];
  /** The row's highest masked score; −inf where nothing is allowed. */
  highest: number;
  /** What each weight is a share of the total of. */
  exponential: number[];
  total: number;
  /** The keys that tie for the highest, for argmax. */
  ties: number[];
}

export function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let index = 0; index < a.length; index++) sum += a[index] * b[index];
  return sum;
}

export function length(vector: ArrayLike<number>): number {
  return Math.sqrt(dot(vector, vector));
}

/** The cosine of the angle; a zero vector has 0 with everything. */
export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const lengths = length(a) * length(b);
  return lengths === 0 ? 0 : dot(a, b) / lengths;
}

/** Return the place of the first number that none is better than; −1 where there is none at all. */
export function place(values: ArrayLike<number>, better: (one: number, other: number) => boolean): number {
  let found = -1;
  for (let index = 0; index < values.length; index++)
    if (found < 0 || better(values[index], values[found])) found = index;
  return found;
}

export function highest(values: ArrayLike<number>): number {
  return place(values, (one, other) => one > other);
}

export function lowest(values: ArrayLike<number>): number {
  return place(values, (one, other) => one < other);
}

/** Exponentials over their sum, the highest taken off first; a row with nothing allowed is zero. */
export function softmax(scores: ArrayLike<number>, temperature = 1): Weighed {
  const highest = top(scores);
  const exponential = Array.from(scores, (score) =>
    score === -Infinity ? 0 : Math.exp((score - highest) / temperature),
  );
  const total = sum(exponential);
  return { weight: exponential.map((part) => (total === 0 ? 0 : part / total)), highest, exponential, total, ties: [] };
}

/** All weight on the highest; those within tolerance × max(1, |highest|) of it tie. */
export function argmax(
  scores: ArrayLike<number>,
  ties: "first" | "last" | "average" = "first",
  tolerance = 1e-5,
): Weighed {
  const highest = top(scores);
  const reach = highest - tolerance * Math.max(1, Math.abs(highest));
  const tied = places(scores, (score) => score !== -Infinity && score >= reach);
  const winners = ties === "average" ? tied : tied.slice(...(ties === "last" ? [-1] : [0, 1]));
  const exponential = Array.from(scores, (_, key) => (winners.includes(key) ? 1 : 0));
  const total = winners.length;
  return { weight: exponential.map((one) => (total === 0 ? 0 : one / total)), highest, exponential, total, ties: tied };
}

/** Each φ(q)·φ(k) over the row's sum of them; zeros where that sum is 0. */
export function kernelized(scores: ArrayLike<number>, normalised = true): Weighed {
  const exponential = Array.from(scores);
  const total = sum(exponential);
  const weight = exponential.map((part) => (normalised ? (total === 0 ? 0 : part / total) : part));
  return { weight, highest: top(scores), exponential, total, ties: [] };
}

/** Each weight by itself: 1 / (1 + e^−(score + offset)), the offset −log of how many keys are allowed if not given. */
export function sigmoid(scores: ArrayLike<number>, offset: number | null = null): Weighed {
  const allowed = places(scores, (score) => score !== -Infinity).length;
  const added = offset ?? -Math.log(Math.max(1, allowed));
  const weight = Array.from(scores, (score) => 1 / (1 + Math.exp(-(score + added))));
  return { weight, highest: top(scores), exponential: weight, total: 1, ties: [] };
}

/** max(score − τ, 0), with τ such that the row sums to one. */
export function sparsemax(scores: ArrayLike<number>): Weighed {
  const highest = top(scores);
  const ranked = Array.from(scores)
    .filter((score) => score !== -Infinity)
    .map((score) => score - highest)
    .sort((a, b) => b - a);
  const threshold = thresholdOf(ranked);
  const weight = Array.from(scores, (score) => (score === -Infinity ? 0 : Math.max(0, score - highest - threshold)));
  return { weight, highest, exponential: weight, total: sum(weight), ties: [] };
}

export function weigh(weighting: Weighting, masked: ArrayLike<number>): Weighed {
  switch (weighting.kind) {
    case "softmax":
      return softmax(masked, weighting.temperature);
    case "argmax":
      return argmax(masked, weighting.ties, weighting.tolerance);
    case "kernelized":
      return kernelized(masked, weighting.normalised);
    case "sigmoid":
      return sigmoid(masked, weighting.offset);
    case "sparsemax":
      return sparsemax(masked);
  }
}

/** null for −inf, as JSON has it. */
export function finite(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

function thresholdOf(ranked: number[]): number {
  let running = 0;
  let threshold = 0;
  ranked.forEach((score, index) => {
    running += score;
    if (1 + (index + 1) * score > running) threshold = (running - 1) / (index + 1);
  });
  return threshold;
}

function top(scores: ArrayLike<number>): number {
  let highest = -Infinity;
  for (let index = 0; index < scores.length; index++) highest = Math.max(highest, scores[index]);
  return highest;
}

function sum(parts: number[]): number {
  return parts.reduce((total, part) => total + part, 0);
}

function places(scores: ArrayLike<number>, fits: (score: number) => boolean): number[] {
  return Array.from(scores, (score, key) => (fits(score) ? key : -1)).filter((key) => key >= 0);
}
