import { describe, expect, it } from "vitest";

import { difference, differing, moved } from "./differences";

describe("differing tokens", () => {
  it("are none where the texts are the same", () => {
    expect(differing(["a", "b"], ["a", "b"])).toEqual({ before: [false, false], after: [false, false] });
  });

  it("are what was put in, left out or replaced", () => {
    expect(differing(["a", "b", "c"], ["a", "c"]).before).toEqual([false, true, false]);
    expect(differing(["a", "c"], ["a", "b", "c"]).after).toEqual([false, true, false]);
    expect(differing(["a", "b"], ["a", "x"])).toEqual({ before: [false, true], after: [false, true] });
  });

  it("leave a common row as long as in any alignment", () => {
    const marks = differing([..."abcbdab"], [..."bdcaba"]);
    expect(marks.before.filter((mark) => !mark)).toHaveLength(4);
    expect(marks.after.filter((mark) => !mark)).toHaveLength(4);
  });

  it("are told place by place in very long texts", () => {
    const long = Array.from({ length: 1500 }, () => "a");
    expect(differing(long, long.with(3, "b")).after.filter(Boolean)).toHaveLength(1);
  });
});

describe("candidates that moved", () => {
  const before = [{ id: 1, text: "two", p: 0.9 }, { id: 2, text: "three", p: 0.05 }]; // prettier-ignore
  const after = [{ id: 3, text: "ten", p: 0.6 }, { id: 1, text: "two", p: 0.3 }]; // prettier-ignore
  it("are of both runs, the likeliest of either first", () => {
    expect(moved(before, after, 5)).toEqual([
      { id: 1, text: "two", before: 0.9, after: 0.3 },
      { id: 3, text: "ten", before: null, after: 0.6 },
      { id: 2, text: "three", before: 0.05, after: null },
    ]);
    expect(moved(before, after, 1)).toHaveLength(1);
  });
});

describe("the difference of matrices", () => {
  it("is taken number by number, and two −∞ do not differ", () => {
    const one = { rows: 1, columns: 3, data: Float32Array.of(1, -Infinity, 0.5) };
    const other = { rows: 1, columns: 3, data: Float32Array.of(1.5, -Infinity, 0.25) };
    expect([...difference(one, other).data]).toEqual([0.5, 0, -0.25]);
  });
});
