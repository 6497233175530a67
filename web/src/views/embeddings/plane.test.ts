import { describe, expect, it } from "vitest";

import { frameOf, pixelOf, type Point, pointAt, searched, withoutOverlap } from "./plane";

const SIZE = { width: 252, height: 152 };
const POINTS: Point[] = [
  [0, 0],
  [2, 1],
  [1, 0.5],
];

describe("the frame", () => {
  it("has all points in it, and the same scale along both directions", () => {
    const frame = frameOf(POINTS, SIZE);
    expect(frame.scale).toBe(100);
    expect(POINTS.map((point) => pixelOf(point, frame))).toEqual([
      [26, 126],
      [226, 26],
      [126, 76],
    ]);
  });

  it("goes closer to a point", () => {
    const frame = frameOf(POINTS, SIZE, 4, POINTS[1]);
    expect(pixelOf(POINTS[1], frame)).toEqual([126, 76]);
    expect(frame.scale).toBe(400);
    expect(frameOf(POINTS, SIZE, 1, POINTS[1]).centre).toEqual([1, 0.5]);
  });

  it("holds for no points, and for one", () => {
    expect(frameOf([], SIZE).centre).toEqual([0, 0]);
    expect(pixelOf([3, 3], frameOf([[3, 3]], SIZE))).toEqual([126, 76]);
  });
});

describe("a pixel", () => {
  it("is of the nearest point, if one is near", () => {
    const frame = frameOf(POINTS, SIZE);
    expect(pointAt(POINTS, frame, [130, 80])).toBe(2);
    expect(pointAt(POINTS, frame, [60, 40])).toBeNull();
  });
});

describe("labels", () => {
  it("cover no other, and stay inside", () => {
    const box = (x: number, y: number): { x: number; y: number; width: number; height: number } => ({
      x,
      y,
      width: 20,
      height: 10,
    });
    expect(withoutOverlap([box(0, 0), box(10, 5), box(20, 0), box(90, 0)], { width: 100, height: 50 })).toEqual([
      true,
      false,
      true,
      false,
    ]);
  });
});

describe("a search", () => {
  it("finds the token itself first, then what begins with it, then what has it", () => {
    const tokens = ["recat", "▁cats", "dog", "▁Cat", "cat"];
    expect(searched(tokens, " cat ", 9)).toEqual([3, 4, 1, 0]);
    expect(searched(tokens, "CAT", 2)).toEqual([3, 4]);
    expect(searched(tokens, "", 9)).toEqual([]);
  });
});
