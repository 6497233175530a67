import { describe, expect, it } from "vitest";

import { between, nextStop, previousStop, progress, staggered, stepAt } from "./timeline";

describe("timeline", () => {
  it("names the step of a time", () => {
    expect([0, 0.5, 1, 1.01, 2, 3, 3.2, 4].map(stepAt)).toEqual([1, 1, 1, 2, 2, 3, 4, 4]);
  });

  it("steps to the next and the previous end, and no further", () => {
    expect([0, 0.3, 1, 2.5, 4].map(nextStop)).toEqual([1, 1, 2, 3, 4]);
    expect([4, 3.2, 1, 0.3, 0].map(previousStop)).toEqual([3, 3, 0, 0, 0]);
  });

  it("starts at 0, ends at 1 and never goes back", () => {
    const shares = [0.9, 1, 1.25, 1.5, 1.75, 2, 3].map((time) => progress(time, 1, 2));
    expect(shares[1]).toBe(0);
    expect(shares[3]).toBe(0.5);
    expect(shares[6]).toBe(1);
    expect([...shares].sort((a, b) => a - b)).toEqual(shares);
  });

  it("lets things start in order and end together with the phase", () => {
    expect(staggered(1.3, 1, 2, 0, 5)).toBeGreaterThan(staggered(1.3, 1, 2, 3, 5));
    for (const index of [0, 4]) expect(staggered(2, 1, 2, index, 5)).toBe(1);
    expect(staggered(2, 1, 2, 0, 1)).toBe(1);
  });

  it("moves numbers, and swaps what is infinite", () => {
    expect(between(8, 2, 0.5)).toBe(5);
    expect(between(8, null, 0.4)).toBe(8);
    expect(between(8, null, 0.6)).toBe(null);
  });
});
