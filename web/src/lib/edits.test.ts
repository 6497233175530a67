import { describe, expect, it } from "vitest";

import * as edits from "./edits";

const AT = "decoder.1.cross";
const CELL = { at: AT, head: 2, query: 1, key: 0 };
const WORDS = { title: "", queries: ["<s>", "two"], keys: ["zwei", "</s>"] };

describe("heads", () => {
  it("go off by a factor of 0 on their context, and on again", () => {
    const off = edits.toggled([], edits.headOff(AT, 3));
    expect(off).toEqual([{ at: AT, step: "context", head: 3, times: 0 }]);
    expect(edits.isOff(off, edits.headOff(AT, 3))).toBe(true);
    expect(edits.isOff(off, edits.headOff(AT, 2))).toBe(false);
    expect(edits.toggled(off, edits.headOff(AT, 3))).toEqual([]);
  });

  it("leave other edits alone", () => {
    const both = edits.toggled(edits.toggled([], edits.headOff(AT, 3)), edits.headOff(AT, 1));
    expect(edits.toggled(both, edits.headOff(AT, 3))).toEqual([edits.headOff(AT, 1)]);
  });

  it("are off only where nothing is left of them", () => {
    expect(edits.isOff([{ at: AT, step: "context", head: 3, times: 0.5 }], edits.headOff(AT, 3))).toBe(false);
  });
});

describe("units of a feed-forward", () => {
  const UP = "decoder.1.feed_forward";

  it("go off by a factor of 0, each by itself, and on again", () => {
    const both = edits.toggled(edits.toggled([], edits.unitOff(UP, 3)), edits.unitOff(UP, 17));
    expect(both).toEqual([
      { at: UP, step: "hidden", unit: 3, times: 0 },
      { at: UP, step: "hidden", unit: 17, times: 0 },
    ]);
    expect(edits.isOff(both, edits.unitOff(UP, 17))).toBe(true);
    expect(edits.isOff(both, edits.unitOff(UP, 4))).toBe(false);
    expect(edits.toggled(both, edits.unitOff(UP, 3))).toEqual([edits.unitOff(UP, 17)]);
  });

  it("are told by their number, and many as one", () => {
    expect(edits.told(edits.unitOff(UP, 17), WORDS)).toBe("unit 17 off");
    expect(edits.told({ at: UP, step: "hidden", unit: 2, query: 1, to: 3 }, WORDS)).toBe("unit 2 at “two” = 3.000");
    expect(edits.titleOf(UP)).toBe("Decoder 1 · feed-forward");
    const many = [1, 2, 3, 4].map((unit) => edits.unitOff(UP, unit));
    expect(edits.groupsOf(many, () => WORDS)).toEqual([{ at: UP, words: "4 units changed", edits: many }]);
  });
});

describe("groups", () => {
  const score = (key: number): edits.Place => ({ ...CELL, key });
  const words = (): edits.Words => WORDS;

  it("tell a few edits one by one", () => {
    const few = [edits.headOff(AT, 1), edits.scoreEdit(score(0), 5), { at: AT, weighting: "argmax" }];
    expect(edits.groupsOf(few, words).map((group) => group.words)).toEqual([
      "head 1 off",
      "head 2, score of “two” → “zwei” = 5.000",
      "weighting argmax",
    ]);
  });

  it("tell many cells of one head as one, and hold them all", () => {
    const many = [0, 1, 2, 3, 4].map((key) => edits.scoreEdit(score(key), 1));
    const [off, all, ...rest] = edits.groupsOf([edits.headOff(AT, 1), ...many], words);
    expect(rest).toEqual([]);
    expect(off.words).toBe("head 1 off");
    expect(all).toEqual({ at: AT, words: "head 2, score: 5 cells changed", edits: many });
  });
});

describe("cells", () => {
  it("are set anew in the place of the old edit", () => {
    const twice = edits.withEdit([edits.headOff(AT, 1), edits.scoreEdit(CELL, 5)], edits.scoreEdit(CELL, 7));
    expect(twice).toEqual([edits.headOff(AT, 1), edits.scoreEdit(CELL, 7)]);
  });

  it("hold a score and a mask side by side", () => {
    const both = edits.withEdit([edits.scoreEdit(CELL, 5)], edits.maskEdit(CELL, false));
    expect(both).toHaveLength(2);
    expect(edits.without(both, edits.maskEdit(CELL, true))).toEqual([edits.scoreEdit(CELL, 5)]);
  });

  it("are of every head where none is named", () => {
    expect(edits.scoreEdit({ ...CELL, head: null }, 5)).toEqual({ at: AT, step: "score", query: 1, key: 0, to: 5 });
    expect(edits.headOf("mean")).toBeNull();
    expect(edits.headOf(0)).toBe(0);
  });
});

describe("sites", () => {
  it("have a temperature, which divides; 1 is none", () => {
    const warm = edits.withTemperature([], AT, 2);
    expect(warm).toEqual([{ at: AT, step: "scaled", times: 0.5 }]);
    expect(edits.temperatureOf(warm, AT)).toBe(2);
    expect(edits.temperatureOf(warm, "encoder.0.attention")).toBe(1);
    expect(edits.withTemperature(warm, AT, 1)).toEqual([]);
  });

  it("have one weighting at most", () => {
    const made = edits.withWeighting(edits.withWeighting([], AT, "argmax"), AT, "sparsemax");
    expect(made).toEqual([{ at: AT, weighting: "sparsemax" }]);
    expect(edits.weightingOf(made, AT)).toBe("sparsemax");
    expect(edits.withWeighting(made, AT, null)).toEqual([]);
  });
});

describe("words", () => {
  it("tell each kind of edit", () => {
    expect(edits.told(edits.headOff(AT, 3), WORDS)).toBe("head 3 off");
    expect(edits.told(edits.scoreEdit(CELL, 5), WORDS)).toBe("head 2, score of “two” → “zwei” = 5.000");
    expect(edits.told(edits.maskEdit(CELL, false), WORDS)).toBe("head 2, “two” → “zwei”: may not attend");
    expect(edits.told(edits.temperatureEdit(AT, 2), WORDS)).toBe("temperature 2.00");
    expect(edits.told({ at: AT, weighting: "argmax" }, WORDS)).toBe("weighting argmax");
    expect(edits.told({ at: AT, step: "query", query: 9, times: 2 }, WORDS)).toContain(
      "query of token 9 → every token",
    );
  });

  it("name a site, known or not", () => {
    expect(edits.titleOf(AT)).toBe("Decoder 1 · cross-attention");
    expect(edits.titleOf("decoder.out")).toBe("decoder.out");
  });
});
