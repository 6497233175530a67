import { expect, it } from "vitest";

import { chosenPlaces, pairOf, pairsFrom } from "./pairs";

it("places are read from the address, and the first few stand for none", () => {
  expect(chosenPlaces("3,1,3,99,x", 5)).toEqual([3, 1]);
  expect(chosenPlaces(null, 3)).toEqual([0, 1, 2]);
  expect(chosenPlaces("77", 20)).toHaveLength(8);
});

it("a pair lies within the table", () => {
  expect(pairOf("1,2", 4)).toEqual([1, 2]);
  expect(pairOf("9,0", 4)).toEqual([3, 0]);
  expect(pairOf("nonsense", 4)).toEqual([0, 1]);
  expect(pairOf(null, 1)).toEqual([0, 0]);
});

it("the pairs of a token have its row of every table", () => {
  const table = (start: number): number[][] => [
    [start, start + 1],
    [start + 2, start + 3],
  ];
  const spaces = {
    places: [0, 4],
    tokens: ["a", "b"],
    embedding: table(0),
    query_key: table(10),
    score: table(20),
    value: table(30),
  };
  expect(pairsFrom(spaces, 1)).toEqual([
    { index: 0, token: "a", embedding: 2, query_key: 12, score: 22, value: 32 },
    { index: 1, token: "b", embedding: 3, query_key: 13, score: 23, value: 33 },
  ]);
});
