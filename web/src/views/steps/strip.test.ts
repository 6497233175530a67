import { describe, expect, it } from "vitest";

import { shadeOf } from "../../lib/colours";
import { cellColours, largest, rowOf } from "./strip";

describe("cellColours", () => {
  it("puts zero in the middle of the scale, and equal numbers in one colour", () => {
    const [high, zero, again, low] = cellColours([1, 0, 1, -1], 1, "light");
    expect(again).toBe(high);
    expect([low, zero, high]).toEqual([0, 0.5, 1].map((share) => shadeOf(share, "signed", "light")));
  });

  it("keeps numbers past the ends at the ends, and draws zeros where all is zero", () => {
    expect(cellColours([9], 2, "dark")).toEqual([shadeOf(1, "signed", "dark")]);
    expect(cellColours([0, 0], 0, "dark")).toEqual(Array(2).fill(shadeOf(0.5, "signed", "dark")));
  });
});

it("largest and rowOf measures size and cuts rows", () => {
  expect(largest([1, -4], [3])).toBe(4);
  expect([...rowOf({ columns: 2, data: Float32Array.of(1, 2, 3, 4) }, 1)]).toEqual([3, 4]);
});
