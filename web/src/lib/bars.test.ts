import { expect, test } from "vitest";

import { nameRoom, shortened } from "./bars";

test("tokens have the room that the longest needs, and at most a share", () => {
  expect(nameRoom([], 400, 0.4)).toBe(46);
  expect(nameRoom(["a", "twelve"], 400, 0.4)).toBe(70);
  expect(nameRoom(["a".repeat(99)], 400, 0.4)).toBe(160);
});

test("a name is cut at its end, to the room that it has", () => {
  expect(shortened("twelve", 70)).toBe("twelve");
  expect(shortened(" undvierzigtausend", 100)).toBe("·undvierzi…");
  expect(shortened("🙂🙂🙂🙂", 30)).toBe("🙂…");
});
