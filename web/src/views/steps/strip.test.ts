import { describe, expect, it } from "vitest";

import { bands, largest, rowOf } from "./strip";

describe("bands", () => {
  it("gathers equal numbers into one path and puts zero in the middle", () => {
    const made = bands([1, 0, 1, -1], 40, 10, 1);
    expect(made.map((band) => band.share).sort()).toEqual([0, 0.5, 1]);
    expect(made.find((band) => band.share === 1)?.path).toBe("M0 0h10v10h-10zM20 0h10v10h-10z");
  });

  it("keeps numbers past the ends at the ends, and draws zeros where all is zero", () => {
    expect(bands([9], 10, 10, 2)[0].share).toBe(1);
    expect(bands([0, 0], 10, 10, 0).map((band) => band.share)).toEqual([0.5]);
  });
});

describe("largest and rowOf", () => {
  it("measures size and cuts rows", () => {
    expect(largest([1, -4], [3])).toBe(4);
    expect([...rowOf({ columns: 2, data: Float32Array.of(1, 2, 3, 4) }, 1)]).toEqual([3, 4]);
  });
});
