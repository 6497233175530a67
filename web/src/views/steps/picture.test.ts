import { describe, expect, it } from "vitest";

import { motionAt } from "./motion";
import { cutToken, isBlocked, nameOnArrows, numberOnArrow, rowWords } from "./picture";

const ROW = {
  score: [4, 8],
  scaled: [2, 4],
  masked: [2.5, null],
  weight: [1, 0],
  allowed: [true, false],
};
const at = (time: number) => motionAt(time, 2, false);

describe("the number on an arrow", () => {
  it("goes from score to scaled to masked", () => {
    expect([2, 2.35, 2.6].map((time) => numberOnArrow(ROW, 0, at(time)))).toEqual([4, 2, 2.5]);
    const between = numberOnArrow(ROW, 0, at(2.1))!;
    expect(between).toBeLessThan(4);
    expect(between).toBeGreaterThan(2);
  });

  it("jumps to −∞ where the key is masked, and the key is blocked from then on", () => {
    expect([2.4, 2.6].map((time) => numberOnArrow(ROW, 1, at(time)))).toEqual([4, null]);
    expect([2.4, 2.6].map((time) => isBlocked({ row: ROW }, 1, at(time)))).toEqual([false, true]);
    expect(isBlocked({ row: ROW }, 0, at(4))).toBe(false);
  });

  it("has a name that says how it was made", () => {
    const words = { formula: "query · key", scale: "÷ √4" };
    expect([2, 2.2, 2.5].map((time) => Object.values(nameOnArrows(ROW, words, at(time))).join(" "))).toEqual([
      "score = query · key",
      "scaled = score ÷ √4",
      "masked = some at −∞",
    ]);
    expect(nameOnArrows({ ...ROW, allowed: [true, true] }, words, at(2.5)).made).toBe("= scaled");
  });
});

it("says all numbers of a key", () => {
  expect(rowWords(ROW, 1)).toBe("Key 1: score 8.000, scaled 4.000, masked −∞, weight 0");
});

it("cuts a token to its room", () => {
  expect([cutToken(" sechzig", 80), cutToken("achtundvierzig", 40), cutToken("", 5)]).toEqual([
    "·sechzig",
    "acht…",
    "∅",
  ]);
});
