/** What softmax does to a row when its scale is taken away: weights, entropy, and how much they can still move. */

import { softmax } from "../../lib/arithmetic";
import type { Row } from "../../lib/source";

/** A divisor between the one a head uses and 1, by a share from 0 to 1, even in ratio. */
export function divisorAt(share: number, start: number): number {
  return start ** (1 - share);
}

/** The weights of a row whose scores are divided by this; what is not allowed stays at 0. */
export function weightsAt(
  score: ArrayLike<number | null>,
  bias: ArrayLike<number>,
  allowed: ArrayLike<boolean>,
  divisor: number,
): number[] {
  const scaled = Array.from(score, (each, key) =>
    each === null || !allowed[key] ? -Infinity : each / divisor + bias[key],
  );
  return softmax(scaled).weight;
}

/** In bits: 0 where one key has everything, log2 of n where n share alike. */
export function entropy(weights: ArrayLike<number>): number {
  let bits = 0;
  for (let key = 0; key < weights.length; key++) if (weights[key] > 0) bits -= weights[key] * Math.log2(weights[key]);
  return Math.max(0, bits);
}

/** How one weight changes with one score: w_i (1 − w_i) for its own, −w_i w_j for another's. */
export function slope(weights: ArrayLike<number>, of: number, by: number): number {
  return weights[of] * ((of === by ? 1 : 0) - weights[by]);
}

/** The keys with the largest weights, and the chosen one, in their order in the text. */
export function strongest(weights: ArrayLike<number>, chosen: number, many: number): number[] {
  const others = Array.from(weights, (_, key) => key).filter((key) => key !== chosen);
  const most = others.toSorted((a, b) => weights[b] - weights[a] || a - b).slice(0, Math.max(1, many - 1));
  return [chosen, ...most].sort((a, b) => a - b);
}

/** The size of softmax's gradient: the root of the sum of all its squared slopes. */
export function gradientSize(weights: ArrayLike<number>): number {
  let [squares, cubes] = [0, 0];
  for (let key = 0; key < weights.length; key++) {
    squares += weights[key] ** 2;
    cubes += weights[key] ** 3;
  }
  return Math.sqrt(Math.max(0, squares - 2 * cubes + squares ** 2));
}

/** What was added to the scaled scores, by key; 0 where nothing can be told. */
export function biasOf(
  scaled: ArrayLike<number | null>,
  masked: ArrayLike<number | null>,
  allowed: ArrayLike<boolean>,
): number[] {
  return Array.from(scaled, (value, key) => {
    const biased = masked[key];
    return value === null || biased === null || !allowed[key] ? 0 : biased - value;
  });
}

/** The weights of a head's row as softmax would have them with its scores divided by this; its bias stays. */
export function rowAt(row: Row, divisor: number): number[] {
  const allowed = row.allowed ?? row.weight.map(() => true);
  return weightsAt(row.score ?? [], biasOf(row.scaled ?? [], row.masked ?? [], allowed), allowed, divisor);
}
