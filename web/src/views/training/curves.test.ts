import { describe, expect, it } from "vitest";

import type { CurveLine } from "../../lib/source";
import { askedAfter, merged, panelsOf, pointsOf, samplesAt, smoothed, stepsOf, wantsLog } from "./curves";

const step = (at: number, loss: number): CurveLine => ({ kind: "training", step: at, loss, lr: 0.001 });
const evaluation = (at: number, loss: number, more = {}): CurveLine => ({
  kind: "evaluation",
  step: at,
  loss,
  ...more,
});

describe("lines", () => {
  it("are merged by kind and step, in order, and the new ones win", () => {
    const lines = merged([step(10, 3), step(20, 2)], [step(20, 1.5), evaluation(20, 1.8)]);
    expect(lines.map((line) => [line.kind, line.step, line.loss])).toEqual([
      ["training", 10, 3],
      ["training", 20, 1.5],
      ["evaluation", 20, 1.8],
    ]);
    expect(stepsOf(lines)).toEqual([10, 20]);
  });

  it("are asked for again from the last step on, as its evaluation comes later", () => {
    expect(askedAfter([step(10, 3), step(20, 2)])).toBe(19);
    expect(askedAfter([])).toBe(-1);
  });
});

describe("points", () => {
  it("are of one kind and one measure, and only numbers", () => {
    const lines = [step(1, 2), evaluation(1, 3), { kind: "training", step: 2, loss: null } as unknown as CurveLine];
    expect(pointsOf(lines, "training", "loss")).toEqual([{ x: 1, y: 2 }]);
    expect(pointsOf([evaluation(1, 3, { accuracy: 0.5 })], "evaluation", "accuracy", 100)[0].y).toBe(50);
  });

  it("keep their mean when evened out, and their ends' steps", () => {
    const line = Array.from({ length: 100 }, (_, place) => ({ x: place, y: place }));
    const even = smoothed(line);
    expect(even[50].y).toBeCloseTo(50);
    expect(even[0]).toEqual({ x: 0, y: 0 });
    const rough = smoothed(line.map(({ x }) => ({ x, y: x % 2 })));
    expect(rough[50].y).toBeGreaterThan(0.3);
    expect(rough[50].y).toBeLessThan(0.7);
  });
});

describe("panels", () => {
  const lines = [step(10, 3), evaluation(10, 2, { bleu: 20, exact_match: 0.25 })];
  it("show what the log has, and no more", () => {
    expect(panelsOf(lines, false).map((panel) => panel.title)).toEqual(["loss (nats)", "score", "learning rate"]);
    expect(panelsOf([step(10, 3)], false).map((panel) => panel.title)).toEqual(["loss (nats)", "learning rate"]);
    expect(panelsOf([], false)).toEqual([]);
  });

  it("show shares as percents", () => {
    const [, scores] = panelsOf(lines, false);
    expect(scores.lines.map((one) => [one.name, one.points[0].y])).toEqual([
      ["BLEU", 20],
      ["exact match %", 25],
    ]);
  });

  it("take a logarithmic scale where losses differ by sizes", () => {
    expect(wantsLog([step(1, 5), step(2, 0.01)])).toBe(true);
    expect(wantsLog([step(1, 5), step(2, 3)])).toBe(false);
    expect(wantsLog([step(1, 5)])).toBe(false);
  });
});

it("samples are those of the last evaluation up to a step", () => {
  const samples = [{ input: "zwei", output: "two", reference: "two" }];
  const lines = [
    evaluation(10, 2, { samples }),
    step(15, 1),
    evaluation(20, 1, { samples: [{ input: "x", output: "y" }] }),
  ];
  expect(samplesAt(lines, 15)).toEqual({ step: 10, samples });
  expect(samplesAt(lines, 20)?.samples[0].reference).toBeNull();
  expect(samplesAt(lines, 5)).toBeNull();
});
