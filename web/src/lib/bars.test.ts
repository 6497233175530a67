import { expect, test } from "vitest";

import { nameRoom } from "./bars";

test("tokens have the room that the longest needs, and at most a share", () => {
  expect(nameRoom([], 400, 0.4)).toBe(46);
  expect(nameRoom(["a", "twelve"], 400, 0.4)).toBe(70);
  expect(nameRoom(["a".repeat(99)], 400, 0.4)).toBe(160);
});
