import { describe, expect, it } from "vitest";

import type { EditJson, StepEdit } from "../../lib/source";
import { preset, scoresOf } from "./design";
import { apart, designed, editsOf, factorOf, HARD, MOST_EDITS, withoutHead } from "./sending";

const AT = "encoder.0.attention";

/** What the server makes of them: in their order, later ones over earlier ones. */
function applied(edits: StepEdit[], rows: number, columns: number): number[][] {
  const made = Array.from({ length: rows }, () => new Array<number>(columns).fill(NaN));
  for (const { query, key, to } of edits)
    for (let i = 0; i < rows; i++)
      for (let j = 0; j < columns; j++) if ((query ?? i) === i && (key ?? j) === j) made[i][j] = Number(to);
  return made;
}

describe("a design sent into a head", () => {
  it("has the head's scores such that softmax sees the designed ones", () => {
    const factor = factorOf({ scale: [1, 0.25] }, 1, "softmax", 10);
    expect(factor * 0.25).toBe(10);
    expect(factorOf({ scale: [0.5] }, 3, "argmax", 10) * 0.5).toBe(HARD);
  });

  it.each([
    [
      [0, 1, 0],
      [0, 0, 1],
      [2, 0, 0],
    ],
    [
      [3, 0, 0],
      [3, 0, 0],
      [3, 0, 1],
    ],
    [
      [1, 1, 1],
      [1, 1, 1],
      [1, 1, 1],
    ],
    [
      [-0.5, 2, 1],
      [0.25, 2, 8],
      [-0.5, 2, 1],
    ],
  ])("sets every cell, whatever the scores", (...scores) => {
    expect(applied(editsOf(AT, 2, scores, 4), 3, 3)).toEqual(scores.map((row) => row.map((one) => one * 4)));
  });

  it("takes few edits where most scores are equal, so that long texts fit too", () => {
    const words = Array.from({ length: 64 }, (_, index) => `w${index}`);
    const scene = { queries: words, keys: words, allowed: () => true };
    expect(editsOf(AT, 0, scoresOf(preset("previous", scene), scene), 1)).toHaveLength(64);
    expect(editsOf(AT, 0, scoresOf(preset("first", scene), scene), 1)).toHaveLength(2);
  });

  it("fits at 31 tokens even if no two scores are equal", () => {
    const scores = Array.from({ length: 31 }, (_, i) => Array.from({ length: 31 }, (_, j) => i * 31 + j));
    expect(editsOf(AT, 0, scores, 1).length).toBeLessThanOrEqual(MOST_EDITS);
  });

  it("is found among edits, and taken out without the others", () => {
    const others: EditJson[] = [
      { at: AT, step: "score", head: 1, query: 0, key: 0, to: 3 },
      { at: AT, weighting: "argmax" },
      { at: AT, step: "context", head: 2, times: 0 },
    ];
    const all = [...others, ...editsOf(AT, 2, [[0, 1]], 1)];
    expect(designed(all)).toEqual([{ at: AT, head: 2 }]);
    expect(withoutHead(all, AT, 2)).toEqual(others);
  });
});

it("how far apart two matrices are", () => {
  expect(apart([[0, 1]], [[0.25, 0.5]])).toBe(0.5);
});
