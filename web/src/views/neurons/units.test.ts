import { describe, expect, it } from "vitest";

import type { NeuronUnit, RunFacts } from "../../lib/source";
import { boxesOf, effectBars, lastWord, listed, signedPercent, widthsOf } from "./units";

const unit = (norm: number): NeuronUnit => ({
  unit: 0,
  steps: { hidden: 1 },
  norm,
  share: 0,
  promotes: [{ id: 1, text: "a", change: 2 }],
  suppresses: [
    { id: 2, text: "b", change: -4 },
    { id: 3, text: "c", change: -1 },
  ],
});

it("the feed-forwards of a run are those with hidden units that a linear map reads", () => {
  const box = (kind: string, name: string, map: string, of: string): unknown => ({
    kind,
    name,
    values: [{ name: `${name}.out`, map, of }],
  });
  const boxes = [
    box("feed_forward", "d.0.feed_forward", "W_down", "d.0.feed_forward.hidden"),
    box("feed_forward", "d.1.feed_forward", "", ""),
    box("attention", "d.0.attention", "W_O", "d.0.attention.concat"),
  ];
  expect(boxesOf({ sides: [{ boxes }] } as unknown as RunFacts)).toEqual(["d.0.feed_forward"]);
  expect(boxesOf(null)).toEqual([]);
});

describe("bars", () => {
  it("are as long as the largest is 1", () => {
    expect(widthsOf([unit(4), unit(1)])).toEqual([1, 0.25]);
    expect(widthsOf([unit(0)])).toEqual([0]);
    expect(widthsOf([])).toEqual([]);
  });

  it("go from the most promoted to the most suppressed", () => {
    expect(effectBars(unit(1)).map(({ text, length }) => [text, length])).toEqual([
      ["a", 0.5],
      ["c", -0.25],
      ["b", -1],
    ]);
    expect(effectBars({ promotes: [], suppresses: [] })).toEqual([]);
  });

  it("say negative shares with a minus sign", () => {
    expect([signedPercent(0.5), signedPercent(-0.031)]).toEqual(["50 %", "−3.1 %"]);
  });
});

describe("the units of a list", () => {
  const numbered = (norms: number[]): NeuronUnit[] => norms.map((norm, at) => ({ ...unit(norm), unit: at }));

  it("add something, or are looked at", () => {
    expect(listed(numbered([2, 1, 0, 0]), (one) => one === 3).map((one) => one.unit)).toEqual([0, 1, 3]);
    expect(listed(numbered([0, 0]), () => false)).toHaveLength(1);
    expect(listed([], () => false)).toEqual([]);
  });

  it("are those of the last token that stands for text", () => {
    expect(lastWord(["<s>", "c", "a", "</s>"])).toBe(2);
    expect(lastWord(["a", "<0xD7>"])).toBe(1);
    expect(lastWord(["<s>", "</s>"])).toBe(1);
    expect(lastWord([])).toBe(0);
  });
});
