import { expect, it } from "vitest";

import { dot } from "../../lib/arithmetic";
import type { Goal } from "../../lib/source";
import { type Scene, scoresOf } from "./design";
import { begin, vectorsOf } from "./goal";
import { packed, unpacked } from "./written";

const WORDS = "the a blue green old creature forest and one".split(" ");
const GOAL: Goal = {
  asked: { name: "mark", title: "", asked: "", hints: [] },
  roles: ["query", "key", "value"],
  cases: WORDS.flatMap((word) => [0, 1, 2, 3, 4, 5].map((place): [string, number] => [word, place])),
  sentences: [WORDS.slice(0, 6)],
  causal: false,
  outputs: 1,
};

it("a head that divides by the square root of d has the design’s scores, times the scale", () => {
  const design = { ...begin(GOAL), content: 2, near: 0.5, fixed: -1, offset: -2, place: 3 };
  design.queries = design.queries.map((row, index) => ({ ...row, vector: [index, 1, 0, -1, 2, 0.5] }));
  const words = WORDS.slice(0, 6);
  const scene: Scene = { queries: words, keys: words, allowed: () => true };
  const { query, key } = vectorsOf(design, 3, GOAL);
  const of = (vectors: number[][], place: number): number[] =>
    vectors[GOAL.cases.findIndex(([word, at]) => word === words[place] && at === place)];
  scoresOf(design, scene).forEach((row, at) =>
    row.forEach((score, other) => expect(dot(of(query, at), of(key, other)) / Math.sqrt(12)).toBeCloseTo(3 * score, 9)),
  );
});

it("values have as many numbers as are asked for, and only the roles that are asked for are sent", () => {
  expect(vectorsOf(begin(GOAL), 1, GOAL).value.every((vector) => vector.length === 1)).toBe(true);
  expect(Object.keys(vectorsOf(begin(GOAL), 1, { ...GOAL, roles: ["query", "key"] }))).toEqual(["query", "key"]);
});

it("a goal’s words all have a row, which the address keeps", () => {
  const design = begin(GOAL);
  expect(design.keys.map((row) => row.word)).toEqual(WORDS);
  expect(unpacked(packed(design))).toEqual(design);
});
