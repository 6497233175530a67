import { describe, expect, it } from "vitest";

import {
  argmax,
  cellOf,
  cosine,
  dot,
  kernelized,
  mix,
  type RowInputs,
  rowSteps,
  sigmoid,
  softmax,
  sparsemax,
} from "./arithmetic";

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

describe("a row and its cell", () => {
  const inputs: RowInputs = {
    query: [1, 2],
    keys: [
      [1, 0],
      [0, 1],
      [5, 5],
    ],
    values: [
      [1, 0],
      [0, 1],
      [9, 9],
    ],
    scale: 0.5,
    weighting: { kind: "softmax", temperature: 1 },
    bias: [0, 0.25, 0],
    blocked: -Infinity,
    allowed: [true, true, false],
  };

  it("goes from score to context", () => {
    const steps = rowSteps(inputs);
    expect(steps.score).toEqual([1, 2, 15]);
    expect(steps.scaled).toEqual([0.5, 1, 7.5]);
    expect(steps.masked).toEqual([0.5, 1.25, -Infinity]);
    expect(steps.weight[2]).toBe(0);
    expect(steps.context).toEqual(mix(steps.weight, inputs.values));
  });

  it("every number of a cell fits the others", () => {
    const cell = cellOf(inputs, 1, { kind: "softmax", n_query: 1, n_key: 3 });
    expect(total(cell.products)).toBe(cell.score);
    expect(cell.exponential).toBeCloseTo(Math.exp(cell.masked! - cell.highest!), 14);
    expect(cell.weight).toBeCloseTo(cell.exponential! / cell.total!, 14);
    expect(cell.share).toEqual(cell.value.map((part) => part * cell.weight));
    expect(cellOf(inputs, 2, { kind: "softmax", n_query: 1, n_key: 3 })).toMatchObject({
      masked: null,
      weight: 0,
      allowed: false,
    });
  });

  it("a score that is no product of query and key shows no products", () => {
    const cell = cellOf({ ...inputs, score: [3, 5, 7] }, 1, { kind: "softmax", n_query: 1, n_key: 3 });
    expect(cell).toMatchObject({ score: 5, products: [] });
  });

  it("what blocks is what the weighting says: of kernelized 0, not −inf", () => {
    const steps = rowSteps({
      ...inputs,
      blocked: 0,
      scale: 1,
      bias: null,
      weighting: { kind: "kernelized", normalised: true },
    });
    expect(steps.masked).toEqual([1, 2, 0]);
    expect(steps.weight).toEqual([1 / 3, 2 / 3, 0]);
  });

  it("weights that it cannot compute are those it was given, and shares of nothing", () => {
    const own: RowInputs = { ...inputs, weighting: null, weight: [0.5, 0.3, 0] };
    expect(rowSteps(own)).toMatchObject({ weight: [0.5, 0.3, 0], masked: rowSteps(inputs).masked });
    const cell = cellOf(own, 1, { kind: "rows", n_query: 1, n_key: 3 });
    expect(cell).toMatchObject({ kind: "rows", weight: 0.3, exponential: null, total: null });
    expect(cell.context).toEqual(mix([0.5, 0.3, 0], inputs.values));
  });
});
