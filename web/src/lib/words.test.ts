import { expect, it } from "vitest";

import type { RunFacts } from "./source";
import {
  hasJob,
  hundredths,
  nameRoom,
  percent,
  piece,
  sentences,
  shortened,
  shown,
  siteTitle,
  size,
  stageOf,
} from "./words";

it("numbers are short and honest", () => {
  expect([shown(0.123456), shown(12.3456), shown(-3.5), shown(0), shown(null), shown(1e-9), shown(0.0003, 3)]).toEqual([
    "0.1235",
    "12.35",
    "−3.500",
    "0",
    "−∞",
    "1.000e−9",
    "3.00e−4",
  ]);
});

it("what rounds to nothing has no minus", () => {
  expect([hundredths(-0.001), hundredths(0), hundredths(-0.006), hundredths(1.234)]).toEqual([
    "0.00",
    "0.00",
    "−0.01",
    "1.23",
  ]);
});

it("shares are percents, and a little is not nothing", () => {
  expect([percent(0.5), percent(0.0123), percent(0.0001), percent(0), percent(0.996), percent(1)]).toEqual([
    "50 %",
    "1.2 %",
    "<0.1 %",
    "0.0 %",
    "99.6 %",
    "100 %",
  ]);
});

it("sites and sizes have names", () => {
  expect(siteTitle({ side: "decoder", layer: 1, slot: "cross" })).toBe("Decoder 1 · cross-attention");
  expect([size(683264), size(1_250_000), size(500)]).toEqual(["683 k", "1.3 M", "500"]);
});

it("only weights that were trained here have a step", () => {
  const run = { step: 0 } as RunFacts;
  const stages = [run, { ...run, imported: true }, { ...run, program: { exact: true, name: "sort" } } as RunFacts];
  expect(stages.map((one) => stageOf(one, { step: 7 }))).toEqual([
    "step 7",
    "imported",
    "compiled from the program sort",
  ]);
});

it("heads that a compiled program has no use for are said to do nothing", () => {
  const heads = [{ site: "encoder.0.attention", head: 1 }];
  const run = { program: { exact: true, layers: [{ heads }] } } as unknown as RunFacts;
  expect([0, 1].map((head) => hasJob(run, "encoder.0.attention", head))).toEqual([false, true]);
  expect(hasJob({} as RunFacts, "encoder.0.attention", 0)).toBe(true);
});

it("a token's space is seen", () => {
  expect([piece(" two"), piece(""), piece("a b")]).toEqual(["·two", "∅", "a b"]);
});

it("notes do not run together: each is a sentence", () => {
  expect(
    sentences(["the target is its own greedy output", "decoder.1.cross ran the reference: weight changed", " "]),
  ).toBe("The target is its own greedy output. Decoder.1.cross ran the reference: weight changed.");
  expect(sentences(["Read as unknown: ß…"])).toBe("Read as unknown: ß…");
});

it("tokens have the room that the longest needs, and at most a share", () => {
  expect(nameRoom([], 400, 0.4)).toBe(46);
  expect(nameRoom(["a", "twelve"], 400, 0.4)).toBe(70);
  expect(nameRoom(["a".repeat(99)], 400, 0.4)).toBe(160);
});

it("a name is cut at its end, to the room that it has", () => {
  expect(shortened("twelve", 70)).toBe("twelve");
  expect(shortened(" undvierzigtausend", 100)).toBe("·undvierzi…");
  expect(shortened("🙂🙂🙂🙂", 30)).toBe("🙂…");
});
