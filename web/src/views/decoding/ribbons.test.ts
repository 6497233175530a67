import { describe, expect, it } from "vitest";

import { bands, layRow, meanOf, middle, ROW, rowWidth } from "./ribbons";

describe("a row", () => {
  it("sets tokens beside each other without touching", () => {
    const boxes = layRow(["sixty", "-", "seven"]);
    boxes.slice(1).forEach((box, before) => {
      expect(box.x).toBeCloseTo(boxes[before].x + boxes[before].width + ROW.gap);
    });
    expect(rowWidth(boxes)).toBeCloseTo(boxes[2].x + boxes[2].width);
    expect(rowWidth([])).toBe(0);
  });

  it("makes a leading space visible", () => {
    expect(layRow([" and"])[0].text).toBe("·and");
  });
});

describe("bands", () => {
  const upper = layRow(["a", "bb", "cc"]);
  const lower = layRow(["word"])[0];
  it("starts where the last one ended, inside the lower token", () => {
    const made = bands([0.5, 0.25, 0.25], upper, lower, 10, 90);
    const starts = made.map((one) => Number(/^M([\d.]+),/.exec(one.path)?.[1]));
    expect(starts[0]).toBeCloseTo(lower.x + 4);
    expect(starts[1]).toBeCloseTo(lower.x + 4 + (lower.width - 8) / 2, 1);
    expect(starts[2]).toBeLessThan(lower.x + lower.width);
  });

  it("ends at the upper token's middle", () => {
    const [, second] = bands([0, 1, 0], upper, lower, 10, 90);
    const [start, end] = [/ ([\d.]+),10H/, /H([\d.]+)/].map((place) => Number(place.exec(second.path)?.[1]));
    expect((start + end) / 2).toBeCloseTo(middle(upper[1]), 1);
  });

  it("has no numbers that are none, though all weights are zero", () => {
    for (const one of bands([0, 0, 0], upper, lower, 10, 90)) expect(one.path).not.toContain("NaN");
  });
});

it("the mean of layers is taken token by token", () => {
  expect(meanOf([[1, 0], [0.5, 0.5]])).toEqual([0.75, 0.25]); // prettier-ignore
  expect(meanOf([])).toEqual([]);
});
