import { describe, expect, test } from "vitest";

import { erf, largest, linear, logSoftmax, normSteps } from "./tensor";

const numbers = (count: number): Float32Array => Float32Array.from({ length: count }, (_, n) => Math.sin(n * 1.7));

describe("linear", () => {
  test.each([
    [1, 3, 5],
    [4, 7, 2],
    [5, 8, 9],
    [9, 1, 1],
  ])("%i rows of %i inputs and %i outputs are sums of products", (rows, inputs, outputs) => {
    const x = { rows, columns: inputs, data: numbers(rows * inputs) };
    const weight = { shape: [outputs, inputs], data: numbers(outputs * inputs) };
    const bias = { shape: [outputs], data: numbers(outputs) };
    const made = linear(x, weight, bias);
    for (let row = 0; row < rows; row++)
      for (let out = 0; out < outputs; out++) {
        let sum = bias.data[out];
        for (let k = 0; k < inputs; k++) sum += x.data[row * inputs + k] * weight.data[out * inputs + k];
        expect(made.data[row * outputs + out]).toBeCloseTo(sum, 5);
      }
  });
});

test("the error function is exact on both sides of where its series ends", () => {
  const known: [number, number][] = [
    [0, 0],
    [0.5, 0.5204998778130465],
    [-1, -0.8427007929497149],
    [2.5, 0.999593047982555],
    [3.5, 0.9999992569016276],
    [9, 1],
  ];
  for (const [x, value] of known) expect(erf(x)).toBeCloseTo(value, 12);
});

test("a layer norm has mean 0 and variance 1 before it is scaled", () => {
  const x = { rows: 1, columns: 8, data: numbers(8) };
  const norm = { kind: "layer" as const, epsilon: 0, gamma: new Float32Array(8).fill(2), beta: null };
  const { normalized, out } = normSteps(norm, x);
  const mean = normalized.data.reduce((sum, one) => sum + one / 8, 0);
  expect(mean).toBeCloseTo(0, 6);
  expect(normalized.data.reduce((sum, one) => sum + (one * one) / 8, 0)).toBeCloseTo(1, 6);
  expect(out.data[3]).toBeCloseTo(2 * normalized.data[3], 6);
});

test("the largest come first, and of equal ones the first", () => {
  expect(largest([1, 5, 3, 5, 2], 3)).toEqual([1, 3, 2]);
  expect(largest([1, 2], 5)).toEqual([1, 0]);
});

test("log-probabilities of a row sum to one, whatever its size", () => {
  const logs = logSoftmax([1000, 1001, -Infinity]);
  expect(logs.reduce((sum, one) => sum + Math.exp(one), 0)).toBeCloseTo(1, 12);
  expect(logs[2]).toBe(-Infinity);
});
