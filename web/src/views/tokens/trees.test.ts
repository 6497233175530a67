import { describe, expect, it } from "vitest";

import type { MergePart } from "../../lib/source";
import { hexOf, kindOf, treeOf } from "./trees";

const leaf = (text: string): MergePart => ({ text, left: null, right: null, rank: null });
const LOW: MergePart[] = [
  leaf("l"),
  leaf("o"),
  leaf("w"),
  { text: "lo", left: 0, right: 1, rank: 5 },
  { text: "low", left: 3, right: 2, rank: 9 },
];

describe("a tree", () => {
  it("has its leaves in a row and each merge between its parts, above them", () => {
    const { nodes, levels, width } = treeOf(LOW);
    const [l, o, w, lo, low] = nodes;
    expect([l.level, o.level, w.level, lo.level, low.level]).toEqual([0, 0, 0, 1, 2]);
    expect(l.x < o.x && o.x < w.x).toBe(true);
    expect(lo.x).toBe((l.x + o.x) / 2);
    expect(low.x).toBe((lo.x + w.x) / 2);
    expect(levels).toBe(2);
    expect(width).toBeGreaterThan(w.x);
  });

  it("is wide enough for what it makes, and holds for one leaf and for none", () => {
    expect(treeOf([leaf("a")]).levels).toBe(0);
    expect(treeOf([]).nodes).toEqual([]);
    const long: MergePart[] = [leaf("a"), leaf("b"), { text: "a".repeat(20), left: 0, right: 1, rank: 0 }];
    expect(treeOf(long).width).toBeGreaterThanOrEqual(20 * 8);
  });
});

it("leaves room for a rank between the lines to two leaves", () => {
  const { nodes } = treeOf([leaf("a"), leaf("b"), { text: "ab", left: 0, right: 1, rank: 123_456 }]);
  expect(nodes[1].x - nodes[0].x).toBeGreaterThanOrEqual(6 * 8);
});

it("bytes are written in hexadecimal", () => {
  expect(hexOf([0xe2, 0x82, 0xac, 0x0a])).toBe("e2 82 ac 0a");
});

describe("the kind", () => {
  const known = { BPE: "merges", plain: "single", other: "?", Unigram: "pieces" };
  it("is told by the model, and BPE without merges as single characters", () => {
    expect(kindOf("BPE", 3, known)).toBe("merges");
    expect(kindOf("BPE", 0, known)).toBe("single");
    expect(kindOf("Unigram", 0, known)).toBe("pieces");
    expect(kindOf("Odd", 0, known)).toBe("?");
  });
});
