import { expect, it } from "vitest";

import { chooseScale, differenceScale, linear, scaleFor, shareOf, ticksOf, weightScale } from "./scale";
import type { Matrix } from "./source";

function matrix(n: number, weight: (query: number, key: number) => number): Matrix {
  const data = Float32Array.from({ length: n * n }, (_, cell) => weight(Math.floor(cell / n), cell % n));
  return { rows: n, columns: n, data };
}
const causal = (query: number, key: number): number => (key <= query ? 1 / (query + 1) : 0);

it("a causal map of 400 tokens is not blank: the first row does not set the scale", () => {
  const scale = weightScale(matrix(400, causal));
  expect(scale).toMatchObject({ kind: "root", clipped: true });
  expect(shareOf(1 / 400, scale)).toBeGreaterThan(0.2);
  expect(shareOf(1 / 200, scale)).toBeGreaterThan(shareOf(1 / 400, scale) + 0.05);
  expect(shareOf(1, scale)).toBe(1);
});

it("a causal map of 12 tokens keeps its first row and shows its last", () => {
  const scale = weightScale(matrix(12, causal));
  expect([scale.high, scale.clipped]).toEqual([1, false]);
  expect(shareOf(1 / 12, scale)).toBeGreaterThan(0.25);
});

it("a sharp head of any length has the plain scale", () => {
  for (const n of [5, 400]) {
    expect(weightScale(matrix(n, (query, key) => (query === key ? 1 : 0)))).toEqual(linear(0, 1));
  }
});

it("weights that are all small are shown with colours that end there", () => {
  expect(weightScale(matrix(50, () => 0.02))).toEqual(linear(0, 0.02));
});

it("rows that see nothing count for nothing", () => {
  expect(weightScale(matrix(40, (query, key) => (query < 30 ? NaN : key === 0 ? 1 : 0)))).toEqual(linear(0, 1));
  expect(weightScale(matrix(3, () => 0))).toEqual(linear(0, 1));
});

it("small differences are seen", () => {
  const scale = differenceScale(matrix(4, (query, key) => (query === key ? -0.004 : 0)));
  expect([scale.low, scale.high]).toEqual([-0.005, 0.005]);
  expect(shareOf(0, scale)).toBe(0.5);
});

it("the ticks lie where their numbers are coloured", () => {
  const scale = { low: 0, high: 0.02, kind: "root" as const, clipped: true };
  expect(ticksOf(scale)).toEqual([
    { value: 0, share: 0 },
    { value: 0.005, share: 0.5 },
    { value: 0.02, share: 1 },
  ]);
});

it("a map of more than 64 keys has a scale for each row, unless another is asked for", () => {
  expect([64, 65].map((keys) => chooseScale(null, keys))).toEqual(["linear", "row"]);
  expect(chooseScale("log", 400)).toBe("log");
  expect(chooseScale("nonsense", 5)).toBe("linear");
});

it("the linear scale is linear, also where the square root would show more", () => {
  const scale = scaleFor("linear", matrix(12, causal));
  expect(shareOf(0.25, scale)).toBeCloseTo(0.25);
});

it("the logarithmic scale has four powers of ten, and what is below them is as blank as nothing", () => {
  const scale = scaleFor(
    "log",
    matrix(3, (query, key) => (query === key ? 1 : 0)),
  );
  expect([1, 0.1, 0.01, 0.001, 0.0001, 0.00001, 0].map((value) => shareOf(value, scale))).toEqual([
    1,
    expect.closeTo(0.75),
    expect.closeTo(0.5),
    expect.closeTo(0.25),
    0,
    0,
    0,
  ]);
  const ticks = ticksOf(scale);
  expect(ticks.map(({ share }) => share)).toEqual([0, expect.closeTo(0.5), 1]);
  expect(ticks.map(({ value }) => value)).toEqual([0.0001, expect.closeTo(0.01), 1]);
});
