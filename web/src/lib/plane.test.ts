import { expect, test } from "vitest";

import { planeOf, turnedTo } from "./plane";

/** Points along two directions at right angles, three times as far along the first, somewhere off the origin. */
function cloud(width: number): number[][] {
  return [3, -3, 1.5, -1.5].map((along, row) =>
    Array.from(
      { length: width },
      (_, k) => 7 + along * ([0.6, -0.8][k] ?? 0) + (row < 2 ? 0.5 : -0.5) * Number(k === 2),
    ),
  );
}

test.each([3, 6, 40])("of %i dimensions the two are found in which the points differ most", (width) => {
  const { points, share } = planeOf(cloud(width));
  const sign = Math.sign(points[0][0]);
  points.forEach(([x, y], row) => {
    expect(sign * x).toBeCloseTo([3, -3, 1.5, -1.5][row], 6);
    expect(Math.abs(y)).toBeCloseTo(0.5, 6);
  });
  expect(share).toBeCloseTo(1, 6);
});

test("the share is what the plane shows of the variance", () => {
  const corners = [0, 1, 2].flatMap((k) => [1, -1].map((far) => [0, 1, 2].map((at) => (at === k ? far * (3 - k) : 0))));
  expect(planeOf(corners).share).toBeCloseTo((9 + 4) / (9 + 4 + 1), 6);
  expect(planeOf([[2, 2], [2, 2]]).share).toBe(0); // prettier-ignore
});

test("a plane is turned, and mirrored where that fits better, to the one before", () => {
  const before: [number, number][] = [[1, 0], [0, 2], [-1, -1]]; // prettier-ignore
  const turn = 0.7;
  for (const mirror of [1, -1]) {
    const moved = before.map(([x, y]): [number, number] => [
      Math.cos(turn) * x - Math.sin(turn) * mirror * y,
      Math.sin(turn) * x + Math.cos(turn) * mirror * y,
    ]);
    turnedTo(before, moved).forEach(([x, y], at) => {
      expect(x).toBeCloseTo(before[at][0], 6);
      expect(y).toBeCloseTo(before[at][1], 6);
    });
  }
});
