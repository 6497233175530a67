/** Which keys are drawn when there are too many to read: the strongest and the nearest that a query may look at. */

export interface Shown {
  /** The keys drawn, in their order. */
  keys: number[];
  /** How many are not, and their weights together. */
  rest: number;
  restWeight: number;
}

export interface KeyChoice {
  weight: ArrayLike<number>;
  /** Where the query stands among the keys, or null if they are another text's. */
  near: number | null;
  /** A key that must be seen. */
  chosen: number | null;
  limit: number;
  /** Which keys the query may look at; all, if not given. Masked ones are drawn only where there are not enough others. */
  allowed?: ArrayLike<boolean> | null;
}

export function chooseKeys({ weight, near, chosen, limit, allowed = null }: KeyChoice): Shown {
  const count = weight.length;
  const order = Array.from({ length: count }, (_, key) => key);
  if (count <= limit + 1) return { keys: order, rest: 0, restWeight: 0 };
  const picked = new Set<number>();
  if (chosen !== null) picked.add(chosen);
  if (near !== null && near < count) picked.add(near);
  const masked = (key: number): number => (allowed === null || allowed[key] ? 0 : 1);
  const strongest = order.toSorted((a, b) => masked(a) - masked(b) || weight[b] - weight[a] || a - b);
  const far = (key: number): number => (near === null ? key : Math.abs(key - near));
  const nearest = order.toSorted((a, b) => masked(a) - masked(b) || far(a) - far(b) || a - b);
  fill(picked, strongest, Math.ceil(limit * 0.7));
  fill(picked, nearest, limit);
  const keys = [...picked].sort((a, b) => a - b);
  const restWeight = order.reduce((sum, key) => (picked.has(key) ? sum : sum + weight[key]), 0);
  return { keys, rest: count - keys.length, restWeight };
}

function fill(picked: Set<number>, candidates: number[], until: number): void {
  for (const key of candidates) {
    if (picked.size >= until) return;
    picked.add(key);
  }
}
