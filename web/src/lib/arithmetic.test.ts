import { describe, expect, it } from "vitest";

import { argmax, cosine, dot, kernelized, sigmoid, softmax, sparsemax } from "./arithmetic";

const total = (parts: number[]): number => parts.reduce((sum, part) => sum + part, 0);

describe("similarity", () => {
  it("is the notes' own example", () => {
    expect(dot([2, 3], [1, 4])).toBe(14);
    expect(14 / Math.SQRT2).toBeCloseTo(9.9, 2);
    expect(cosine([2, 3], [1, 4])).toBeCloseTo(0.94, 2);
  });

  it("a zero vector has a cosine of 0", () => {
    expect(cosine([0, 0], [1, 2])).toBe(0);
  });
});

describe("softmax", () => {
  it("sums to one and keeps the order", () => {
    const { weight } = softmax([1, 2, 3]);
    expect(total(weight)).toBeCloseTo(1, 14);
    expect(weight[2] / weight[1]).toBeCloseTo(Math.E, 12);
  });

  it("sends −inf to exactly 0", () => {
    expect(softmax([0, -Infinity, 0]).weight).toEqual([0.5, 0, 0.5]);
  });

  it("a row with nothing allowed is zero, not NaN", () => {
    expect(softmax([-Infinity, -Infinity])).toMatchObject({ weight: [0, 0], total: 0 });
  });

  it("large scores keep their digits", () => {
    expect(softmax([1000, 1001]).weight[1]).toBeCloseTo(1 / (1 + Math.exp(-1)), 12);
  });

  it("a temperature divides the scores", () => {
    expect(softmax([2, 4], 2).weight).toEqual(softmax([1, 2]).weight);
  });
});

describe("argmax", () => {
  it("takes the first of a tie, the last, or all alike", () => {
    const scores = [1, 3, 3 - 1e-6, -Infinity];
    expect(argmax(scores).weight).toEqual([0, 1, 0, 0]);
    expect(argmax(scores, "last").weight).toEqual([0, 0, 1, 0]);
    expect(argmax(scores, "average").weight).toEqual([0, 0.5, 0.5, 0]);
    expect(argmax(scores).ties).toEqual([1, 2]);
  });

  it("the tolerance grows with the score, and ends", () => {
    expect(argmax([1e4, 1e4 - 0.05], "average").ties).toEqual([0, 1]);
    expect(argmax([1, 1 - 1e-4], "average").ties).toEqual([0]);
  });

  it("nothing allowed wins nothing", () => {
    expect(argmax([-Infinity, -Infinity])).toMatchObject({ weight: [0, 0], ties: [] });
  });
});

describe("kernelized", () => {
  it("gives each its share of the sum", () => {
    expect(kernelized([1, 0, 3])).toMatchObject({ weight: [0.25, 0, 0.75], total: 4 });
  });

  it("a sum of 0 gives zeros; unnormalised the amounts stay", () => {
    expect(kernelized([0, 0]).weight).toEqual([0, 0]);
    expect(kernelized([1, 3], false).weight).toEqual([1, 3]);
  });
});

describe("others", () => {
  it("sigmoid weighs each key by itself, and counts those allowed", () => {
    expect(sigmoid([0, 0, -Infinity]).weight).toEqual([1 / 3, 1 / 3, 0]);
    expect(sigmoid([0], 0).weight).toEqual([0.5]);
  });

  it("sparsemax sums to one and has exact zeros", () => {
    const { weight } = sparsemax([2, 1.5, -1, -Infinity]);
    expect(weight[0]).toBeCloseTo(0.75, 12);
    expect(weight[1]).toBeCloseTo(0.25, 12);
    expect(weight.slice(2)).toEqual([0, 0]);
  });
});
