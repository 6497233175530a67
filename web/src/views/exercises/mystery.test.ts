import { expect, it } from "vitest";

import type { MysteryModel } from "../../lib/source";
import { experiment } from "./mystery";

const MODEL: MysteryModel = {
  name: "m",
  edges: ["a -> b", "b -> c"],
  texts: ["a", "b", "ab"],
  answers: [[null], ["x"], [null, "a"]],
  changed: [["y"]],
  changes: [[1, 0, 1, 0]],
};

it("an edge that carries another text's changes the answer, and the others do not", () => {
  expect(experiment(MODEL, "a", "b")).toEqual({
    answer: "–",
    otherAnswer: "x",
    patched: [
      { answer: "–", changed: false },
      { answer: "y", changed: true },
    ],
  });
  expect(experiment(MODEL, "b", "a").patched?.every((one) => !one.changed)).toBe(true);
});

it("texts that are not alike long, or no texts of the model, are not patched", () => {
  expect(experiment(MODEL, "ab", "a")).toEqual({ answer: "– a", otherAnswer: "–", patched: null });
  expect(experiment(MODEL, "z", "a")).toEqual({ answer: null, otherAnswer: "–", patched: null });
});
