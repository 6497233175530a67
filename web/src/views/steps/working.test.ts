import { describe, expect, it } from "vitest";

import { sigmoid, sparsemax } from "../../lib/arithmetic";
import {
  amounts,
  briefly,
  figures,
  presentIn,
  rowRule,
  gathered,
  plainProducts,
  degrees,
  scaleWords,
  scoreFormula,
  turnedPairs,
  worked,
  temperatureOf,
  termsOf,
} from "./working";

describe("numbers", () => {
  it("keep four figures, however small", () => {
    expect([14.2, 0.0123456, -0.00034028, 1234567, 0, null, 0.51301].map((value) => figures(value))).toEqual([
      "14.20",
      "0.01235",
      "−3.403e−4",
      "1.235e6",
      "0",
      "−∞",
      "0.5130",
    ]);
  });

  it("of a calculation give its result, as they are written", () => {
    const share = (one: number, all: number): number => one / all;
    expect(worked([1, 1.00021], share)).toEqual(["1.0000", "1.0002"]);
    expect(worked([0.5, 2], share)).toEqual(["0.5000", "2.000"]);
    expect(worked([null, 3.25], (one, highest) => Math.exp(one - highest))).toEqual(["−∞", "3.250"]);
    const [one, other] = worked([12.34449, 12.34441], (one, other) => one - other);
    expect(figures(Number(one) - Number(other))).toBe("8.000e−5");
  });

  it("never say 0 of a weight that is not", () => {
    expect([0.51301, 0.0007, 0.0002, 0].map(briefly)).toEqual(["0.513", "0.001", "2.0e−4", "0"]);
  });
});

const COSINE = { prepared: "unit {}", formula: "query · key ÷ (|query| · |key|)" };
const FEATURES = { prepared: "φ({})", formula: "φ(query) · φ(key)" };

it("turnedPairs turns each pair by its own angle, and leaves the rest out", () => {
  const [first, second] = turnedPairs(
    [1, 0, 9, 2],
    [
      [0, 1],
      [3, 2],
    ],
    [Math.PI / 2, 0],
  );
  expect(first.after[0]).toBeCloseTo(0);
  expect(first.after[1]).toBeCloseTo(1);
  expect([second.before, second.after]).toEqual([
    [2, 9],
    [2, 9],
  ]);
  expect(degrees(Math.PI / 2)).toBe("90.0°");
});

describe("scaleWords", () => {
  it("says √d where it is √d", () => {
    expect(scaleWords(1 / 8, 64, "ScaledDot()")).toMatchObject({ by: "÷ √64", plain: "÷ 8" });
    expect(scaleWords(2 ** -0.5, 2, "ScaledDot()").plain).toBe("÷ 1.414");
  });

  it("says temperature, factor or nothing where it is not", () => {
    expect(scaleWords(10, 64, "1 ÷ the temperature of this head")).toMatchObject({
      by: "× 10",
      why: "1 ÷ the temperature of this head",
    });
    expect(scaleWords(0.5, 64, "ScaledDot(factor=0.5)").by).toBe("× 0.5000");
    expect(scaleWords(1, 64, "Dot()").by).toBe("");
  });
});

it("products tells a plain dot product from one of prepared vectors", () => {
  const plain = { kind: "softmax", query: [2, 3], key: [1, 4], products: [2, 12] };
  expect(plainProducts(plain)).toBe(true);
  expect(scoreFormula(plain, [2, 3], COSINE)).toBe("query · key");
  expect(scoreFormula(plain, [5, 6], COSINE)).toBe("unit query · unit key");
  expect(scoreFormula(plain, [5, 6], FEATURES)).toBe("φ(query) · φ(key)");
  const unit = { ...plain, products: [0.135, 0.807] };
  expect(plainProducts(unit)).toBe(false);
  expect(scoreFormula(unit, [2, 3], COSINE)).toContain("|query|");
  expect(scoreFormula(unit, [2, 3], FEATURES)).toBe("φ(query) · φ(key)");
});

it("temperatureOf is read off the numbers", () => {
  expect(temperatureOf({ masked: 1, highest: 3, exponential: Math.exp(-2) })).toBe(1);
  expect(temperatureOf({ masked: 1, highest: 3, exponential: Math.exp(-1) })).toBeCloseTo(2, 6);
  expect(temperatureOf({ masked: null, highest: 3, exponential: 0 })).toBe(1);
});

describe("amounts", () => {
  it("are exponentials whose shares are softmax's weights", () => {
    const masked = [1, 2, null];
    const total = Math.exp(-1) + 1;
    const made = amounts("softmax", masked, [Math.exp(-1) / total, 1 / total, 0]);
    const sum = made.reduce((all, { amount }) => all + (amount ?? 0), 0);
    for (const { amount, weight } of made) expect((amount ?? 0) / sum).toBeCloseTo(weight, 12);
  });

  it("are the masked numbers of a kernel, and nothing for a choice", () => {
    expect(amounts("kernelized", [3, 1], [0.75, 0.25]).map(({ amount }) => amount)).toEqual([3, 1]);
    expect(amounts("argmax", [3, 1], [1, 0])[0].amount).toBe(null);
  });
});

describe("the weighted sum", () => {
  const values = { columns: 2, data: Float32Array.of(1, 2, 3, 4) };

  it("is written out in one dimension", () => {
    const products = termsOf([0.25, 0.75], values, 1).map(({ product }) => product);
    expect(products).toEqual([0.5, 3]);
  });

  it("names what is there", () => {
    expect(presentIn([1, 0, -2.5], ["one", "here", "sink"])).toEqual(["one 1.00", "sink −2.50"]);
    expect(presentIn([0, 3], ["one"])).toEqual(["1 3.00"]);
  });
  it("grows as values arrive", () => {
    expect([...gathered([0.25, 0.75], values, () => 1)]).toEqual([2.5, 3.5]);
    expect([...gathered([0.25, 0.75], values, (key) => (key === 0 ? 1 : 0))]).toEqual([0.25, 0.5]);
  });
});

describe("a row whose weights have a number of their own", () => {
  it("says the threshold of sparsemax, by which any weight can be worked out", () => {
    const { weight } = sparsemax([1, 0.6, -2]);
    expect(rowRule("Sparsemax", [1, 0.6, -2], weight, 1)).toBe("max(0.6000 − τ, 0) with τ = 0.3000");
    expect(weight[1]).toBeCloseTo(0.3);
  });

  it("says the offset of sigmoid, and what it is where it follows the keys", () => {
    const { weight } = sigmoid([0.5, -1, -Infinity]);
    expect(rowRule("Sigmoid", [0.5, -1, null], weight, 0)).toBe(
      "1 ÷ (1 + e^−(0.5000 + offset)) with offset = −ln 2 = −0.6931",
    );
    expect(rowRule("Sigmoid", [0.5, -1, null], sigmoid([0.5, -1, -Infinity], -3).weight, 1)).toContain(
      "offset = −3.000",
    );
  });

  it("says nothing of a masked key, nor of a weighting of the user's own", () => {
    expect(rowRule("Sparsemax", [1, null], [1, 0], 1)).toBeNull();
    expect(rowRule("Own", [1, 0], [0.5, 0.5], 1)).toBeNull();
  });
});
