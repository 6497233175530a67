import { describe, expect, it } from "vitest";

import { chooseKeys } from "./window";

const flat = (count: number): number[] => Array.from({ length: count }, () => 1 / count);

describe("chooseKeys", () => {
  it("shows all where all can be read", () => {
    expect(chooseKeys({ weight: flat(11), near: 3, chosen: null, limit: 10 })).toEqual({
      keys: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
      rest: 0,
      restWeight: 0,
    });
  });

  it("keeps the strongest, the nearest and the chosen, in their order", () => {
    const weight = flat(4096).map((share) => share / 10);
    weight[17] = 0.5;
    weight[4000] = 0.4;
    const { keys, rest, restWeight } = chooseKeys({ weight, near: 2000, chosen: 3, limit: 10 });
    expect(keys).toHaveLength(10);
    for (const key of [3, 17, 1999, 2000, 2001, 4000]) expect(keys).toContain(key);
    expect(keys).toEqual(keys.toSorted((a, b) => a - b));
    expect(rest).toBe(4086);
    const all = weight.reduce((sum, share) => sum + share, 0);
    const seen = keys.reduce((sum, key) => sum + weight[key], 0);
    expect(seen + restWeight).toBeCloseTo(all, 10);
  });

  it("of a query that may look back only, keys after it are drawn last", () => {
    const weight = Array.from({ length: 40 }, (_, key) => (key <= 20 ? 1 / 21 : 0));
    const allowed = weight.map((_, key) => key <= 20);
    const { keys, restWeight } = chooseKeys({ weight, near: 20, chosen: null, limit: 10, allowed });
    expect(Math.max(...keys)).toBe(20);
    expect(restWeight).toBeCloseTo(11 / 21);
    const early = chooseKeys({
      weight: [0.5, 0.5, ...weight.slice(2).fill(0)],
      near: 1,
      chosen: null,
      limit: 6,
      allowed: weight.map((_, key) => key < 2),
    });
    expect(early.keys).toEqual([0, 1, 2, 3, 4, 5]);
  });

  it("works without a place of its own among the keys", () => {
    const { keys } = chooseKeys({ weight: flat(50), near: null, chosen: 40, limit: 6 });
    expect(keys).toHaveLength(6);
    expect(keys).toContain(40);
  });
});
