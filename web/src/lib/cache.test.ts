import { expect, it } from "vitest";

import { Cache } from "./cache";

it("lets go what was not used for longest, by size", () => {
  const cache = new Cache<string>(10);
  cache.set("a", "a", 4);
  cache.set("b", "b", 4);
  cache.get("a");
  cache.set("c", "c", 4);
  expect([cache.get("a"), cache.get("b"), cache.get("c")]).toEqual(["a", undefined, "c"]);
});

it("keeps one that is larger than its limit, and a name only once", () => {
  const cache = new Cache<string>(10);
  cache.set("a", "a", 50);
  cache.set("a", "b", 60);
  expect(cache.get("a")).toBe("b");
  cache.set("c", "c", 1);
  expect([cache.get("a"), cache.get("c")]).toEqual([undefined, "c"]);
});
