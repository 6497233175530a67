import { expect, it } from "vitest";

import type { SiteMeta } from "../../lib/source";
import { readingsOf } from "./reading";

const site = { slot: "attention", n_key: 8 } as SiteMeta;
const readings = {
  entropy: [0, 3],
  distance: [1, 2],
  first: [0.3, 0.5],
  itself: [0, 0.2],
  previous: [0.9, 0.1],
  same: [null, null],
  induction: [0.2, null],
  gain: [0.5, 2],
};

it("bars go from nothing to all there can be", () => {
  const [sharp] = readingsOf(readings, site, 0);
  const [flat] = readingsOf(readings, site, 1);
  expect([sharp.share, flat.share]).toEqual([0, 1]);
  expect(sharp.meaning).toContain("knows where to look");
  expect(flat.meaning).toContain("8.0 of 8 keys");
});

it("the mean leaves out what there is none of", () => {
  const named = Object.fromEntries(readingsOf(readings, site, "mean").map((one) => [one.name, one.value]));
  expect(named).toEqual({
    entropy: 1.5,
    distance: 1.5,
    first: 0.4,
    itself: 0.1,
    previous: 0.5,
    same: null,
    induction: 0.2,
    gain: 1.25,
  });
});

it("says whether W_O scales a head up or down", () => {
  const [down, up] = [0, 1].map((head) => readingsOf(readings, site, head).find((one) => one.name === "gain")!);
  expect([down.text, up.text]).toEqual(["× 0.50", "× 2.0"]);
  expect([down.meaning, up.meaning]).toEqual([expect.stringContaining("down"), expect.stringContaining("up")]);
});

it("says why there is no number", () => {
  const same = readingsOf(readings, site, 0).find((one) => one.name === "same")!;
  expect([same.text, same.share]).toEqual(["none", 0]);
  expect(same.meaning).toMatch(/repeats/);
});
