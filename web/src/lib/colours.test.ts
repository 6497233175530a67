import { expect, it } from "vitest";

import { shadeOf, stepOf, table, topOf } from "./colours";

function lightness(colour: ArrayLike<number>): number {
  return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2];
}

it.each(["light", "dark"] as const)(
  "weights go one way in lightness, so that they read without colour: %s",
  (shade) => {
    const bytes = table("sequential", shade);
    const steps = Array.from({ length: 256 }, (_, step) => lightness(bytes.subarray(step * 4, step * 4 + 3)));
    const way = shade === "light" ? -1 : 1;
    steps.slice(1).forEach((step, index) => expect((step - steps[index]) * way).toBeGreaterThanOrEqual(-0.6));
    expect(Math.abs(steps[255] - steps[0])).toBeGreaterThan(150);
  },
);

it("a number has its place between the ends, and stays there", () => {
  expect([stepOf(0, 0, 1), stepOf(0.5, 0, 1), stepOf(2, 0, 1), stepOf(-Infinity, 0, 1), stepOf(NaN, 0, 1)]).toEqual([
    0, 128, 255, 0, 0,
  ]);
  expect(shadeOf(7, "sequential", "light")).toBe(shadeOf(1, "sequential", "light"));
});

it("colours of small weights end near the largest", () => {
  expect([topOf(0.9), topOf(0.3), topOf(0.031), topOf(0.1), topOf(0)].map((top) => top.toPrecision(2))).toEqual([
    "1.0",
    "0.50",
    "0.050",
    "0.10",
    "1.0",
  ]);
});
