import { describe, expect, it } from "vitest";

import type { Matrix, SideName } from "../lib/source";
import { comparisonOf, largest, movedShares, samePlace, type Shown } from "./difference";

const SITE = { name: "decoder.0.cross", query_side: "decoder", key_side: "encoder" } as const;

function shown(encoder: string, decoder: string, run: Partial<Shown["run"]> = {}): Shown {
  const side = (text: string) => ({ tokens: text.split(" "), ids: [] });
  return {
    run: { name: "one", path: "runs/one", vocabulary: 10, ...run },
    meta: { source: encoder, sides: { encoder: side(encoder), decoder: side(decoder) } as never },
    site: SITE,
  };
}

function matrix(columns: number, data: number[]): Matrix {
  return { rows: data.length / columns, columns, data: Float32Array.from(data) };
}

describe("what can be compared", () => {
  it("is every cell where both read the same tokens", () => {
    const both = comparisonOf(shown("a b", "x y"), shown("a b", "x y"));
    expect(both).toEqual({ cells: true, caveats: [] });
  });

  it("is no cell of another output or another text", () => {
    expect(comparisonOf(shown("a b", "x y"), shown("a b", "x z"))).toMatchObject({
      cells: false,
      caveats: ["outputs"],
    });
    expect(comparisonOf(shown("a b", "x y"), shown("a c", "x y")).caveats).toEqual(["texts"]);
  });

  it("is every cell of the encoder where only the outputs differ", () => {
    const site = { name: "encoder.0.attention", query_side: "encoder" as SideName, key_side: "encoder" as SideName };
    const [one, other] = [shown("a b", "x"), shown("a b", "y")].map((side) => ({ ...side, site }));
    expect(comparisonOf(one, other)).toEqual({ cells: true, caveats: [] });
  });

  it("is a place of the output up to where the outputs part", () => {
    const [one, other] = [shown("a b", "<s> x y"), shown("a b", "<s> x z")];
    expect([0, 1, 2].map((place) => samePlace(one.meta, other.meta, place))).toEqual([true, true, false]);
    expect(samePlace(one.meta, shown("a c", "<s> x y").meta, 0)).toBe(false);
  });

  it("is doubtful between runs, and said so", () => {
    const other = shown("a b", "x y", { path: "runs/two", vocabulary: 12 });
    expect(comparisonOf(shown("a b", "x y"), other)).toMatchObject({ cells: true, caveats: ["run", "tokenizer"] });
    expect(comparisonOf(shown("a b", "x y"), { ...other, site: null }).caveats).toContain("site");
  });
});

describe("the difference", () => {
  it("names the cells that changed most, the largest first", () => {
    const [before, after] = [matrix(2, [0.1, 0.9, 0.5, 0.5]), matrix(2, [0.7, 0.3, 0.5, 0.4])];
    const cells = largest(before, after, 3);
    expect(cells.map(({ query, key }) => [query, key])).toEqual([
      [0, 0],
      [0, 1],
      [1, 1],
    ]);
    expect(largest(before, after, 1)).toHaveLength(1);
    expect(largest(before, before, 3)).toEqual([]);
  });

  it("says of each head how much of its weight moved", () => {
    const thumbs = (...data: number[]) => ({ heads: 2, rows: 1, columns: 2, data: Uint8Array.from(data) });
    const moved = movedShares(thumbs(254, 0, 254, 0), thumbs(254, 0, 0, 254));
    expect(moved).toEqual([0, 1]);
    expect(movedShares(thumbs(255, 255, 254, 0), thumbs(255, 255, 254, 0))).toEqual([0, 0]);
  });
});
