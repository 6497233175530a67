import { describe, expect, it } from "vitest";

import { preset } from "./design";
import { brief, few, scaleWords, shareWords } from "./telling";
import { packed, typed, unpacked } from "./written";

const WORDS = ["a", "b", '["c'];
const DESIGN = { ...preset("same", { queries: WORDS, keys: WORDS, allowed: () => true }), near: 0.5, offset: -2 };

describe("a design in the address", () => {
  it("comes back as it was", () => {
    expect(unpacked(packed(DESIGN))).toEqual(DESIGN);
  });

  it.each([null, "", "{}", "[3]", "[3,[],[],1,0,0]", "[9,[],[],1,0,0,-1,0]", '[2,[["a",1]],[],1,0,0,-1,0]'])(
    "what is none is none: %s",
    (text) => expect(unpacked(text)).toBeNull(),
  );

  it("has no numbers that are none", () => {
    expect(unpacked(packed(DESIGN).replace("0.5", "null"))).toBeNull();
  });
});

it("numbers as they are typed", () => {
  expect(["1", " −0,5 ", "1e9", "", "x", "-2.5"].map(typed)).toEqual([1, -0.5, 1e4, null, null, -2.5]);
});

it("numbers in few letters", () => {
  expect([0, 1, 0.333, -0.5, 1.25, 12.4, 1000, 1e-9].map(brief)).toEqual([
    "0",
    "1",
    ".33",
    "−.5",
    "1.3",
    "12",
    "1e3",
    "0",
  ]);
  expect([10, 0.25, -1, Infinity].map(few)).toEqual(["10", "0.25", "−1", "∞"]);
  expect([6.541, 12.34, Infinity].map(scaleWords)).toEqual(["6.54", "12.3", "none"]);
});

it("a share is never told higher than it is", () => {
  expect([1, 0.5, 0.99977, 0.9899].map(shareWords)).toEqual(["1", "0.500", "0.99977", "0.989"]);
  expect(shareWords(1 - 3e-8)).toBe("1 − 3e−8");
});
