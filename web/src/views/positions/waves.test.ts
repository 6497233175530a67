import { describe, expect, it } from "vitest";

import { angleAt, byDistance, columnsThatVary, noise, pairing, roughly, spread, toggled, wavelength } from "./waves";

const D = 16;
const angle = (place: number, pair: number): number => place / 10000 ** ((2 * pair) / D);
const interleaved = Array.from({ length: 40 }, (_, place) =>
  Array.from({ length: D }, (_, d) => (d % 2 ? Math.cos : Math.sin)(angle(place, Math.floor(d / 2)))),
);
const halves = Array.from({ length: 40 }, (_, place) =>
  Array.from({ length: D }, (_, d) => (d < D / 2 ? Math.sin(angle(place, d)) : Math.cos(angle(place, d - D / 2)))),
);
const halvesTurned = halves.map((row) => [...row.slice(D / 2), ...row.slice(0, D / 2)]);
const turning = interleaved.map((row) => row.map((_, d) => row[d % 2 ? d - 1 : d + 1]));

it("of a compiled table only the columns that differ between positions are shown first", () => {
  expect(
    columnsThatVary([
      [0, 1, 0],
      [0, 0, 1],
    ]),
  ).toEqual([1, 2]);
  expect(columnsThatVary([])).toEqual([]);
});

describe("pairing", () => {
  it("finds sine and cosine however they lie", () => {
    expect(pairing(interleaved)?.(3)).toEqual({ sine: 6, cosine: 7 });
    expect(pairing(halves)?.(3)).toEqual({ sine: 3, cosine: 11 });
    expect(pairing(turning)?.(3)).toEqual({ sine: 7, cosine: 6 });
    expect(pairing(halvesTurned)?.(3)).toEqual({ sine: 11, cosine: 3 });
    expect(pairing(noise(4, 8))).toBe(null);
    expect(pairing([])).toBe(null);
    expect(
      pairing([
        [0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
      ]),
    ).toBe(null);
  });

  it("reads the speed of a pair off the table: high in early dimensions, at every position", () => {
    const pair = pairing(interleaved)!;
    expect(wavelength(interleaved, pair(0))).toBeCloseTo(2 * Math.PI, 8);
    expect(wavelength(interleaved, pair(7))).toBeCloseTo(2 * Math.PI * 10000 ** (14 / 16), 3);
    for (const place of [1, 20]) {
      const turned = angleAt(interleaved, pair(1), place + 1) - angleAt(interleaved, pair(1), place);
      expect(Math.cos(turned)).toBeCloseTo(Math.cos(angle(1, 1)), 8);
    }
  });
});

describe("choices", () => {
  it("spreads from first to last", () => {
    expect(spread(32)).toEqual([0, 3, 8, 14, 22, 31]);
    expect(spread(2)).toEqual([0, 1]);
  });

  it("adds and takes away, never all", () => {
    expect(toggled([0, 4], 2)).toEqual([0, 2, 4]);
    expect(toggled([0, 4], 4)).toEqual([0]);
    expect(toggled([0], 0)).toEqual([0]);
    expect(toggled([0, 1], 5, 2)).toEqual([1, 5]);
  });
});

describe("similarity by distance", () => {
  it("is 1 at distance 0, depends on distance alone for a sinusoid, and is near 0 for noise", () => {
    const alike = byDistance(interleaved);
    expect(alike[0]).toBeCloseTo(1, 12);
    const pairs = Array.from({ length: D / 2 }, (_, pair) => Math.cos(angle(5, pair)));
    expect(alike[5]).toBeCloseTo(pairs.reduce((sum, each) => sum + each, 0) / pairs.length, 10);
    expect(Math.abs(byDistance(noise(40, 64))[3])).toBeLessThan(0.1);
  });

  it("writes numbers roughly", () => {
    expect([6.283, 628.3, 62831.9, Infinity].map(roughly)).toEqual(["6.3", "628", "62,832", "∞"]);
  });
});
