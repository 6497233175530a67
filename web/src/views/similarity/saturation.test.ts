import { describe, expect, it } from "vitest";

import { biasOf, divisorAt, entropy, gradientSize, rowAt, slope, strongest, weightsAt } from "./saturation";

const SCORE = [8, 4, 0, 12];
const NONE = [0, 0, 0, 0];
const ALL = [true, true, true, true];

describe("weightsAt", () => {
  it("is softmax of the scores over the divisor", () => {
    const weights = weightsAt([2, 0], [0, 0], [true, true], 2);
    expect(weights[0]).toBeCloseTo(Math.E / (Math.E + 1), 12);
  });

  it("keeps what is masked at nothing and adds the bias after dividing", () => {
    expect(weightsAt(SCORE, NONE, [true, true, true, false], 1)[3]).toBe(0);
    const weights = weightsAt([4, 0], [0, 2], [true, true], 2);
    expect(weights[0]).toBeCloseTo(0.5, 12);
  });
});

describe("saturation", () => {
  it("goes from the head’s divisor to 1", () => {
    expect(divisorAt(0, 8)).toBe(8);
    expect(divisorAt(1, 8)).toBe(1);
    expect(divisorAt(0.5, 16)).toBeCloseTo(4, 12);
  });

  it("takes entropy and gradient away with the scale", () => {
    const rows = [0, 0.5, 1].map((share) => weightsAt(SCORE, NONE, ALL, divisorAt(share, 16)));
    const bits = rows.map(entropy);
    const sizes = rows.map(gradientSize);
    expect(bits[0]).toBeGreaterThan(bits[1]);
    expect(bits[1]).toBeGreaterThan(bits[2]);
    expect(sizes[0]).toBeGreaterThan(sizes[2]);
    expect(sizes[2]).toBeLessThan(0.05);
  });

  it("measures entropy in bits and the gradient by its slopes", () => {
    expect(entropy([0.25, 0.25, 0.25, 0.25])).toBe(2);
    expect(entropy([1, 0])).toBe(0);
    const weights = [0.5, 0.3, 0.2];
    let squares = 0;
    for (const of of [0, 1, 2]) for (const by of [0, 1, 2]) squares += slope(weights, of, by) ** 2;
    expect(gradientSize(weights)).toBeCloseTo(Math.sqrt(squares), 12);
    const step = 1e-6;
    const moved = weightsAt([1 + step, 0.5, 0], [0, 0, 0], [true, true, true], 1);
    const before = weightsAt([1, 0.5, 0], [0, 0, 0], [true, true, true], 1);
    expect((moved[1] - before[1]) / step).toBeCloseTo(slope(before, 1, 0), 5);
  });
});

it("biasOf is what lies between scaled and masked", () => {
  expect(biasOf([1, 2, 3], [0.5, 2, null], [true, true, false])).toEqual([-0.5, 0, 0]);
});

it("rowAt by the head's own divisor is the head's row, with the bias of its positions", () => {
  const masked = [1, 0.5, null];
  const row = { score: [2, 2, 9], scaled: [1, 1, 4.5], masked, allowed: [true, true, false], weight: [0, 0, 0] };
  const weights = rowAt(row, 2);
  expect(weights[0] / weights[1]).toBeCloseTo(Math.exp(0.5), 12);
  expect(weights[2]).toBe(0);
});

describe("strongest", () => {
  it("are the keys with the largest weights and the chosen one, in their order", () => {
    expect(strongest([0.1, 0.5, 0, 0.4], 2, 3)).toEqual([1, 2, 3]);
    expect(strongest([0.1, 0.5, 0, 0.4], 1, 3)).toEqual([0, 1, 3]);
    expect(strongest([1], 0, 9)).toEqual([0]);
    expect(strongest([0.2, 0.8], 0, -1)).toEqual([0, 1]);
  });
});
