import { describe, expect, it } from "vitest";

import { dot } from "../../lib/arithmetic";
import {
  asked,
  directions,
  MOST_WORDS,
  outputsOf,
  preset,
  type Scene,
  scoresOf,
  wantedOf,
  withDimensions,
  withNumber,
  withoutWord,
  withWord,
} from "./design";

const WORDS = "the cute blue creature sees the blue creature".split(" ");
const SCENE: Scene = { queries: WORDS, keys: WORDS, allowed: () => true };
const CAUSAL: Scene = { ...SCENE, allowed: (query, key) => key <= query };

function places(rows: boolean[][]): number[][] {
  return rows.map((row) => row.flatMap((is, key) => (is ? [key] : [])));
}

describe("directions of keys", () => {
  it("are orthogonal as long as there is an axis for each", () => {
    const found = directions(4, 4);
    found.forEach((a, i) => found.forEach((b, j) => expect(dot(a, b)).toBe(i === j ? 1 : 0)));
  });

  it("are all different where there are more words than axes, and none scores with another as with itself", () => {
    const found = directions(MOST_WORDS, 2);
    found.forEach((a, i) => found.forEach((b, j) => i !== j && expect(dot(a, b)).toBeLessThan(dot(a, a))));
  });
});

describe("ready heads", () => {
  it("the previous token is wanted by all but the first, and scores 1", () => {
    const design = preset("previous", SCENE);
    expect(places(wantedOf(design, SCENE))).toEqual([[], [0], [1], [2], [3], [4], [5], [6]]);
    expect(scoresOf(design, SCENE)[3]).toEqual([0, 0, 1, 0, 0, 0, 0, 0]);
  });

  it("the first token is wanted by all", () => {
    expect(places(wantedOf(preset("first", SCENE), SCENE)).every((row) => row.join() === "0")).toBe(true);
  });

  it("the same token is found wherever it is", () => {
    expect(places(wantedOf(preset("same", SCENE), SCENE))[2]).toEqual([2, 6]);
  });

  it("every X looks at Y, and nothing else asks", () => {
    const design = preset("looks", SCENE, { from: "creature", to: "blue" });
    expect(places(wantedOf(design, SCENE))).toEqual([[], [], [], [2, 6], [], [], [], [2, 6]]);
    expect(scoresOf(design, SCENE)[7]).toEqual([0, 0, 1, 0, 0, 0, 1, 0]);
  });

  it("has room for the pair also where the text has more words than the table", () => {
    const long = Array.from({ length: 20 }, (_, index) => `w${index}`);
    const design = preset("looks", { ...SCENE, queries: long, keys: long }, { from: "w18", to: "w19" });
    expect(design.keys).toHaveLength(MOST_WORDS);
    expect(design.queries.at(-1)).toMatchObject({ word: "w18", asks: ["w19"] });
  });
});

describe("a design", () => {
  it("wants only what a query may look at", () => {
    expect(places(wantedOf(preset("same", CAUSAL), CAUSAL))[2]).toEqual([2]);
    const next = { ...preset("previous", CAUSAL), offset: 1 };
    expect(places(wantedOf(next, CAUSAL)).flat()).toEqual([]);
  });

  it("by content and by place together prefers what has both", () => {
    const both = { ...preset("looks", SCENE, { from: "creature", to: "blue" }), near: 1, offset: -1 };
    expect(places(wantedOf(both, SCENE))[3]).toEqual([2]);
    expect(scoresOf(both, SCENE)[3]).toEqual([0, 0, 2, 0, 0, 0, 1, 0]);
  });

  it("a query is the sum of the keys it asks for, until it is written by hand", () => {
    const design = asked(preset("same", SCENE), 3, ["blue", "cute"]);
    expect(design.queries[3].vector).toEqual([0, 1, 1, 0, 0]);
    const written = withNumber(design, "queries", 3, 0, 5);
    expect(written.queries[3]).toMatchObject({ vector: [5, 1, 1, 0, 0], asks: ["blue", "cute"] });
  });

  it("follows its words and its dimensions", () => {
    const design = withDimensions(preset("same", SCENE), 2);
    expect(design.keys.every((row) => row.vector.length === 2)).toBe(true);
    expect(design.queries[2].vector).toEqual(design.keys[2].vector);
    const less = withoutWord(preset("same", SCENE), "keys", "blue");
    expect(less.queries[2].asks).toEqual([]);
    expect(withWord(less, "keys", "blue").keys.at(-1)?.word).toBe("blue");
    expect(withWord(less, "keys", "the")).toBe(less);
  });
});

it("an output is the values of what is looked at, times the weights", () => {
  const design = withNumber(preset("same", SCENE), "values", 0, 1, 5);
  const weights = SCENE.queries.map(() => SCENE.keys.map((_, key) => (key === 0 ? 0.5 : 0)));
  const [first] = design.values;
  expect(outputsOf(weights, design, SCENE)[0]).toEqual(first.vector.map((value) => value * 0.5));
  expect(first.vector[1]).toBe(5);
  expect(design.keys[0].vector[1]).not.toBe(5);
});
