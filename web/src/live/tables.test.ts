import { expect, test } from "vitest";

import { principalPlane } from "./tables";

/** Points along two directions at right angles, three times as far along the first, somewhere off the origin. */
function cloud(width: number): Float32Array {
  const [u, v] = [new Float32Array(width), new Float32Array(width)];
  u.set([0.6, -0.8]);
  v.set([0, 0, -1], 0);
  return Float32Array.from(
    [3, -3, 1.5, -1.5].flatMap((along, row) => {
      const across = row < 2 ? 0.5 : -0.5;
      return Array.from({ length: width }, (_, k) => 7 + along * u[k] + across * v[k]);
    }),
  );
}

test.each([3, 6, 40])("of %i dimensions the two are found in which the points differ most", (width) => {
  const { points, explained } = principalPlane(cloud(width), 4, width);
  // The largest number of a direction is positive: the first turns round, and so does the second.
  points.forEach(([x, y], row) => {
    expect(x).toBeCloseTo([-3, 3, -1.5, 1.5][row], 5);
    expect(y).toBeCloseTo(row < 2 ? -0.5 : 0.5, 5);
  });
  expect(explained[0]).toBeCloseTo(22.5 / 23.5, 5);
  expect(explained[1]).toBeCloseTo(1 / 23.5, 5);
});

test("a table of one number a token has one direction, and one of equal vectors none", () => {
  const line = principalPlane(Float32Array.of(1, 2, 4), 3, 1);
  expect(line.points.map(([, y]) => y)).toEqual([0, 0, 0]);
  expect(line.explained).toEqual([1, 0]);
  const same = principalPlane(new Float32Array(12).fill(2), 4, 3);
  expect(same.explained).toEqual([0, 0]);
  expect(same.points.flat().every((value) => value === 0)).toBe(true);
});
