import { scaleLog } from "d3-scale";
import { describe, expect, it } from "vitest";

import { logTicks, nearest, spread, tickText } from "./chart";

it("the point that is read is the nearest that there is", () => {
  const points = [{ x: 10, y: 1 }, { x: 20, y: 2 }]; // prettier-ignore
  expect(nearest(points, 14)?.x).toBe(10);
  expect(nearest(points, 19)?.x).toBe(20);
  expect(nearest([], 3)).toBeNull();
});

describe("ticks of a logarithmic scale", () => {
  const between = (low: number, high: number): number[] => scaleLog().domain([low, high]).ticks();
  it("are enough to read a curve by, however few powers of ten it crosses", () => {
    expect(logTicks(between(0.11, 6.5)).map(tickText)).toEqual(["0.2", "0.5", "1", "2", "5"]);
    expect(logTicks(between(1e-4, 6)).map(tickText)).toEqual(["0.0001", "0.001", "0.01", "0.1", "1"]);
    expect(logTicks(between(3, 4.5)).length).toBeGreaterThan(1);
  });
});

describe("spread", () => {
  it("moves names apart and no more", () => {
    expect(spread([10, 12, 50], 10, 0, 100)).toEqual([10, 20, 50]);
  });

  it("keeps them above the end", () => {
    const placed = spread([95, 96, 97], 10, 0, 100);
    expect(placed).toEqual([80, 90, 100]);
  });
});
