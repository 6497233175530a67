import { describe, expect, it } from "vitest";

import { shadeOf } from "./colours";
import { inkOn, luminance } from "./ink";

const INKS = { black: "rgb(0, 0, 0)", white: "rgb(255, 255, 255)" };

function contrast(one: string, other: string): number {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

describe("ink", () => {
  it("is black on white and white on black, which are as far apart as can be", () => {
    expect(inkOn(INKS.white)).toBe("black");
    expect(inkOn(INKS.black)).toBe("white");
    expect(contrast(INKS.black, INKS.white)).toBeCloseTo(21);
  });

  it.each(["light", "dark"] as const)("can be read on every shade of the weights in %s", (theme) => {
    for (let share = 0; share <= 1; share += 0.005) {
      const shade = shadeOf(share, "sequential", theme);
      expect(contrast(shade, INKS[inkOn(shade)])).toBeGreaterThanOrEqual(4.5);
    }
  });
});
