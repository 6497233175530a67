import { describe, expect, it } from "vitest";

import { fitted, layerName, lowest, named, pairsOf, type Point } from "./paths";

const place = (text: string): { text: string; tokens: string[]; places: number[] } => ({
  text,
  tokens: [],
  places: [],
});

it("names are letters of the texts, numbered where a text has the word twice", () => {
  expect(named([place("x"), place("y"), place("y")])).toEqual([
    { text: 0, letter: "A" },
    { text: 1, letter: "B1" },
    { text: 1, letter: "B2" },
  ]);
});

describe("pairs", () => {
  const cosine = [
    [[1, 1, 1], [1, 1, 1], [1, 1, 1]], // prettier-ignore
    [[1, 0.5, 0.2], [0.5, 1, 0.7], [0.2, 0.7, 1]], // prettier-ignore
  ];
  it("has each two once, with a cosine for each layer", () => {
    expect(pairsOf(cosine)).toEqual([
      { one: 0, other: 1, cosine: [1, 0.5] },
      { one: 0, other: 2, cosine: [1, 0.2] },
      { one: 1, other: 2, cosine: [1, 0.7] },
    ]);
    expect(pairsOf([])).toEqual([]);
  });

  it("leaves room below the lowest, and never passes −1", () => {
    expect(lowest(pairsOf(cosine))).toBeLessThan(0.2);
    expect(lowest([{ one: 0, other: 1, cosine: [-0.99] }])).toBe(-1);
    expect(lowest([])).toBe(0.8);
  });
});

describe("fitted", () => {
  it("keeps shapes: the same factor both ways, y upwards", () => {
    const [[a, b, c]] = fitted([[[0, 0], [2, 0], [0, 1]]], 220, 220, 10); // prettier-ignore
    expect(b[0] - a[0]).toBeCloseTo(2 * (a[1] - c[1]));
    expect(c[1]).toBeLessThan(a[1]);
  });

  it("stays inside the margin, and in the middle where all is one point", () => {
    const points: Point[] = [[-3, 8], [5, 2], [1, 1]]; // prettier-ignore
    for (const [x, y] of fitted([points], 300, 200, 20)[0]) {
      expect(x).toBeGreaterThanOrEqual(20 - 1e-9);
      expect(x).toBeLessThanOrEqual(280 + 1e-9);
      expect(y).toBeGreaterThanOrEqual(20 - 1e-9);
      expect(y).toBeLessThanOrEqual(180 + 1e-9);
    }
    expect(fitted([[[4, 4]]], 300, 200, 20)).toEqual([[[150, 100]]]);
  });
});

it("layers are called by name", () => {
  expect(["embedding", "0"].map(layerName)).toEqual(["embedding", "layer 0"]);
});
