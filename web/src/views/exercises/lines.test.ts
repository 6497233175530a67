import { expect, it } from "vitest";

import { changed, choices, fresh, type Menus, possible, read, without, written } from "./lines";

const MENUS: Menus = {
  operations: {
    select: ["sequence", "sequence", "predicate"],
    both: ["selector", "selector"],
    width: ["selector"],
    aggregate: ["selector", "sequence"],
    map: ["function", "sequence"],
  },
  puzzle: { menus: { predicate: ["True", "key == query"], function: ["value + 1"] } },
};
const TEXT =
  "select | tokens | tokens | True\nwidth | line 1\nselect | indices | line 2 | key == query\naggregate | line 3 | tokens";

it("lines come back from the address as they were", () => {
  const lines = read(TEXT, MENUS, 20);
  expect(lines.map(written).join("\n")).toBe(TEXT);
  expect(read(TEXT, MENUS, 2)).toHaveLength(2);
  expect(read(null, MENUS, 20)).toEqual([]);
});

it.each(["eval | 1", "width | line 1", "select | tokens | tokens | x", "width", "constructor | a"])(
  "what is in no menu ends them: %s",
  (line) => expect(read(`${line}\n${TEXT}`, MENUS, 20)).toEqual([]),
);

it("only what fits may be chosen", () => {
  expect(possible([], MENUS)).toEqual(["select", "map"]);
  const lines = read(TEXT, MENUS, 20);
  expect(choices("selector", lines, MENUS)).toEqual(["line 1", "line 3"]);
  expect(choices("sequence", lines, MENUS)).toEqual(["tokens", "indices", "line 2", "line 4"]);
  expect(fresh("width", lines, MENUS)).toEqual({ operation: "width", chosen: ["line 3"] });
});

it("a line that goes takes along what named it, and others keep what they name", () => {
  const lines = read(TEXT, MENUS, 20);
  expect(without(lines, 0, MENUS)).toEqual([]);
  const more = read(
    `map | value + 1 | indices\n${TEXT.replaceAll(/line (\d)/g, (_, n) => `line ${Number(n) + 1}`)}`,
    MENUS,
    20,
  );
  expect(without(more, 0, MENUS)).toEqual(lines);
});

it("a line that is changed into a sequence takes along what selected by it", () => {
  const lines = read(TEXT, MENUS, 20);
  const next = changed(lines, 0, fresh("map", [], MENUS), MENUS);
  expect(next.map((line) => line.operation)).toEqual(["map"]);
});
