import { describe, expect, it } from "vitest";

import { apart, arc, factor, fit, inTheirPlane, measure, neat, overlap, readVector, shadow } from "./plane";

describe("measure", () => {
  it("is the notes’ example", () => {
    const { dot, scaled, cosine, angle, lengths } = measure([2, 3], [1, 4]);
    expect(dot).toBe(14);
    expect(neat(scaled)).toBe("9.90");
    expect(neat(cosine)).toBe("0.94");
    expect(angle).toBeCloseTo(19.65, 2);
    expect(lengths[0]).toBeCloseTo(Math.sqrt(13), 12);
  });

  it("has no angle where a vector is zero", () => {
    expect(measure([0, 0], [1, 4])).toMatchObject({ dot: 0, cosine: 0, angle: null });
    expect(fit(null)).toContain("length 0");
  });
});

it("inTheirPlane keeps lengths, angle and dot product of long vectors", () => {
  const a = [1, -2, 0.5, 3, 0];
  const b = [0, 1, 1, 1, -2];
  const [p, q] = inTheirPlane(a, b);
  const [long, flat] = [measure(a, b), measure(p, q)];
  expect(flat.dot).toBeCloseTo(long.dot, 10);
  expect(flat.angle).toBeCloseTo(long.angle!, 10);
  expect(flat.lengths[0]).toBeCloseTo(long.lengths[0], 10);
});

describe("drawing", () => {
  it("lets the shadow times the length be the dot product", () => {
    const foot = shadow([2, 3], [1, 4]);
    expect(Math.hypot(...foot) * Math.hypot(1, 4)).toBeCloseTo(14, 10);
    expect(shadow([1, 1], [0, 0])).toEqual([0, 0]);
  });

  it("turns the short way", () => {
    expect(arc([1, 0], [0, 1], 10)).toBe("M10.00 0.00A10 10 0 0 0 0.00 -10.00");
    expect(arc([0, 1], [1, 0], 10)).toContain("0 0 1");
  });

  it("writes and reads numbers", () => {
    expect([14, 9.8995, -0.707, -0.001].map((one) => neat(one))).toEqual(["14", "9.90", "−0.71", "0"]);
    expect(factor(-2)).toBe("(−2)");
    expect(readVector("2,3")).toEqual([2, 3]);
    expect([null, "", "2", "2,x", "1,2,3"].map(readVector)).toEqual([null, null, null, null, null]);
  });
});

it("words at one place are moved apart, others stay", () => {
  const word = { x: 0, y: 0, width: 40, height: 16 };
  expect(apart(word, word).map(Math.abs)).toEqual([8, 8]);
  expect(apart({ ...word, y: -4 }, word)).toEqual([-6, 6]);
  expect(apart({ ...word, y: -17 }, word)).toEqual([0, 0]);
  expect(overlap({ ...word, x: 39 }, word)).toBe(true);
  expect(overlap({ ...word, x: 41 }, word)).toBe(false);
});
