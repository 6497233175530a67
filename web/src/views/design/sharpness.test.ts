import { describe, expect, it } from "vitest";

import { maskedOf, preset, type Scene, scoresOf, wantedOf } from "./design";
import { casesOf, curveOf, hardest, marginOf, neededFor, onWanted, scaleFor, weightsOf, winners } from "./sharpness";

const WORDS = "the cute blue creature sees the blue creature".split(" ");
const SCENE: Scene = { queries: WORDS, keys: WORDS, allowed: () => true };

function tried(kind: "previous" | "same", scene = SCENE): { masked: number[][]; wanted: boolean[][] } {
  const design = preset(kind, scene);
  return { masked: maskedOf(scoresOf(design, scene), scene), wanted: wantedOf(design, scene) };
}

describe("sharpness", () => {
  it("is that of clearhead.craft: ln(9 · 99) for one among ten, 6.541 for one among eight", () => {
    expect(scaleFor({ margin: 1, wanted: 1, unwanted: 9 }, 0.01)).toBeCloseTo(6.792, 3);
    const { masked, wanted } = tried("previous");
    expect(neededFor(casesOf(masked, wanted), 0.01)).toBeCloseTo(6.541, 3);
  });

  it("at the scale that is needed softmax leaves 1 − ε, with less it leaves less", () => {
    const { masked, wanted } = tried("previous");
    const needed = neededFor(casesOf(masked, wanted), 0.01);
    const least = (scale: number): number => Math.min(...onWanted(weightsOf(masked, "softmax", scale), wanted));
    expect(least(needed)).toBeCloseTo(0.99, 9);
    expect(least(needed / 2)).toBeCloseTo(0.79, 2);
  });

  it("is exact with argmax, and equal words share", () => {
    const { masked, wanted } = tried("same");
    const weights = weightsOf(masked, "argmax", 0);
    expect(onWanted(weights, wanted).every((share) => share === 1)).toBe(true);
    expect(weights[2]).toEqual([0, 0, 0.5, 0, 0, 0, 0.5, 0].map((one, key) => (key === 2 || key === 6 ? 0.5 : one)));
  });

  it("no scale is enough where another scores as high", () => {
    const cases = casesOf([[1, 1, 0]], [[true, false, false]]);
    expect(marginOf(cases)).toBe(0);
    expect(neededFor(cases, 0.01)).toBe(Infinity);
    expect(winners(cases)).toBe(0);
  });

  it("keys that may not be looked at do not count", () => {
    const cases = casesOf([[1, -Infinity, 5]], [[true, false, false]]);
    expect(cases).toEqual([{ query: 0, margin: -4, wanted: 1, unwanted: 1 }]);
    expect(marginOf(casesOf([[1, -Infinity]], [[true, false]]))).toBe(Infinity);
    expect(neededFor(casesOf([[1, -Infinity]], [[true, false]]), 0.01)).toBe(0);
  });

  it("what is blocked has no weight at any scale, 0 too", () => {
    expect(weightsOf([[3, -Infinity, 1]], "softmax", 0)).toEqual([[0.5, 0, 0.5]]);
  });

  it("the hardest query is the one that needs most", () => {
    const { masked, wanted } = tried("same");
    expect(hardest(casesOf(masked, wanted), 0.01)).toMatchObject({ query: 1, wanted: 1, unwanted: 7 });
    expect(hardest([], 0.01)).toBeNull();
  });

  it("the curve rises from the even share", () => {
    const { masked, wanted } = tried("previous");
    const curve = curveOf(masked, wanted, 20, 10);
    expect(curve[0]).toEqual([0, expect.closeTo(1 / 8, 9)]);
    curve.slice(1).forEach(([, share], index) => expect(share).toBeGreaterThan(curve[index][1]));
  });
});
