import { expect, it } from "vitest";

import { motionAt } from "./motion";

const ALL = ["read", "split", "mapping", "turning", "scaling", "masking"] as const;
const ROWS = ["arrow", "weighing", "travel", "arrived"] as const;

it("is at rest before the first step and after the last", () => {
  for (const [time, at] of [[0, 0], [4, 1]]) {
    const motion = motionAt(time, 3, true);
    expect(ALL.map((name) => motion[name])).toEqual(ALL.map(() => at));
    for (const row of [0, 1, 2]) expect(ROWS.map((name) => motion[name](row))).toEqual(ROWS.map(() => at));
  }
}); // prettier-ignore

it("turns a query after its map, and maps one that is not turned as slowly as keys and values", () => {
  const [turned, plain] = [motionAt(0.62, 3, true), motionAt(0.62, 3, false)];
  expect([turned.mapping, turned.turning]).toEqual([1, 0]);
  expect(plain.mapping).toBe(plain.split);
  expect(plain.mapping).toBeLessThan(1);
});

it("moves the rows one after another, and adds a value only where it has arrived", () => {
  const motion = motionAt(3.4, 3, false);
  expect(motion.travel(0)).toBeGreaterThan(motion.travel(1));
  expect(motion.travel(1)).toBeGreaterThan(motion.travel(2));
  expect([motion.arrived(0), motion.arrived(2)]).toEqual([1, 0]);
});
