import { describe, expect, it } from "vitest";

import type { Cursor } from "../lib/address";
import { followedBy, sameCursor } from "./linking";

const SITES = [
  { name: "encoder.0.attention", n_heads: 4, n_query: 5, n_key: 5 },
  { name: "decoder.0.cross", n_heads: 2, n_query: 3, n_key: 5 },
];
const CURSOR: Cursor = { view: "head", site: "decoder.0.cross", head: 1, query: 2, key: 4 };

describe("a linked cursor", () => {
  it("goes to the same view, site, head and cell", () => {
    const { selection, missing } = followedBy(CURSOR, { sites: SITES });
    expect(selection).toEqual({ view: "head", site: "decoder.0.cross", head: 1, query: 2, key: 4 });
    expect(missing).toEqual([]);
  });

  it("keeps the mean of heads, and no chosen token", () => {
    const { selection } = followedBy({ ...CURSOR, head: "mean", query: null, key: null }, { sites: SITES });
    expect(selection).toEqual({ view: "head", site: "decoder.0.cross", head: "mean", query: null, key: null });
  });

  it("stays where the other has no such thing, and says which", () => {
    expect(followedBy({ ...CURSOR, site: "decoder.7.cross" }, { sites: SITES })).toEqual({
      selection: { view: "head" },
      missing: [{ what: "site", name: "decoder.7.cross" }],
    });
    const far = followedBy({ ...CURSOR, head: 3, query: 9, key: 7 }, { sites: SITES });
    expect(far.selection).toEqual({ view: "head", site: "decoder.0.cross" });
    expect(far.missing).toEqual([
      { what: "head", head: 3, heads: 2 },
      { what: "query", place: 9, count: 3 },
      { what: "key", place: 7, count: 5 },
    ]);
  });

  it("says why the other has no such view, and says nothing of sites before there is a trace", () => {
    const absent = { decoding: "it writes nothing" };
    expect(followedBy({ ...CURSOR, view: "decoding" }, { sites: [], absent })).toEqual({
      selection: { view: "decoding" },
      missing: [{ what: "view", why: "it writes nothing" }],
    });
  });

  it("is the same only where all of it is", () => {
    expect(sameCursor(CURSOR, { ...CURSOR })).toBe(true);
    expect(sameCursor(CURSOR, { ...CURSOR, key: null })).toBe(false);
    expect(sameCursor(CURSOR, { ...CURSOR, view: "steps" })).toBe(false);
  });
});
