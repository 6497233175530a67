import { describe, expect, it } from "vitest";

import { changeText, difference, differing, moved, shareOf, shareText } from "./differences";

it("differing tokens are counted once a place: never more than there are places", () => {
  const [before, after] = [[..."abcbdab"], [..."bdcabaa"]];
  const places = before.map((token, place) => token !== after[place]);
  expect(differing(before, after)).toEqual(places);
  expect(differing(["a", "b"], ["a", "b"])).toEqual([false, false]);
  expect(differing(["a", "b"], ["a", "b", "c"])).toEqual([false, false, true]);
});

describe("candidates that moved", () => {
  const before = [{ id: 1, text: "two", p: 0.9 }, { id: 2, text: "three", p: 0.05 }]; // prettier-ignore
  const after = [{ id: 3, text: "ten", p: 0.6 }, { id: 1, text: "two", p: 0.3 }]; // prettier-ignore
  it("are of both runs, the likeliest of either first", () => {
    const rows = moved(before, after, 5);
    expect(rows.map(({ id }) => id)).toEqual([1, 3, 2]);
    expect(rows.map((row) => [shareText(row.before), shareText(row.after)])).toEqual([
      ["90 %", "30 %"],
      ["< 5.0 %", "60 %"],
      ["5.0 %", "< 30 %"],
    ]);
    expect(moved(before, after, 1)).toHaveLength(1);
  });

  it("never say 0 of a token that is only not among the likeliest", () => {
    expect(shareText(shareOf(7, before))).toBe("< 5.0 %");
    expect(shareText(shareOf(7, []))).toBe("< 100 %");
    expect(rowsChange(3)).toBe("≈ +60 %");
    expect(rowsChange(1)).toBe("−60 %");
  });

  function rowsChange(id: number): string {
    return changeText(shareOf(id, before), shareOf(id, after));
  }
});

it("the difference of matrices is taken number by number, and two −∞ do not differ", () => {
  const one = { rows: 1, columns: 3, data: Float32Array.of(1, -Infinity, 0.5) };
  const other = { rows: 1, columns: 3, data: Float32Array.of(1.5, -Infinity, 0.25) };
  expect([...difference(one, other).data]).toEqual([0.5, 0, -0.25]);
});
