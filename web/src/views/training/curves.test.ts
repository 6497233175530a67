import { scaleLog } from "d3-scale";
import { describe, expect, it } from "vitest";

import type { CurveLine } from "../../lib/source";
import {
  askedAfter,
  logTicks,
  merged,
  nearest,
  panelsOf,
  pointsOf,
  samplesAt,
  smoothed,
  stepsOf,
  tickText,
  wantsLog,
} from "./curves";

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
    expect(pointsOf(lines, "training", "loss")).toEqual([{ step: 1, value: 2 }]);
    expect(pointsOf([evaluation(1, 3, { accuracy: 0.5 })], "evaluation", "accuracy", 100)[0].value).toBe(50);
  });

  it("keep their mean when evened out, and their ends' steps", () => {
    const line = Array.from({ length: 100 }, (_, place) => ({ step: place, value: place }));
    const even = smoothed(line);
    expect(even[50].value).toBeCloseTo(50);
    expect(even[0]).toEqual({ step: 0, value: 0 });
    const rough = smoothed(line.map(({ step: at }) => ({ step: at, value: at % 2 })));
    expect(rough[50].value).toBeGreaterThan(0.3);
    expect(rough[50].value).toBeLessThan(0.7);
  });

  it("are found by the nearest step", () => {
    const points = [{ step: 10, value: 1 }, { step: 20, value: 2 }]; // prettier-ignore
    expect(nearest(points, 14)?.step).toBe(10);
    expect(nearest(points, 19)?.step).toBe(20);
    expect(nearest([], 3)).toBeNull();
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
    expect(scores.series.map((one) => [one.name, one.points[0].value])).toEqual([
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

describe("ticks of a logarithmic scale", () => {
  const between = (low: number, high: number): number[] => scaleLog().domain([low, high]).ticks();
  it("are enough to read a curve by, however few powers of ten it crosses", () => {
    expect(logTicks(between(0.11, 6.5)).map(tickText)).toEqual(["0.2", "0.5", "1", "2", "5"]);
    expect(logTicks(between(1e-4, 6)).map(tickText)).toEqual(["0.0001", "0.001", "0.01", "0.1", "1"]);
    expect(logTicks(between(3, 4.5)).length).toBeGreaterThan(1);
  });
});

describe("samples", () => {
  it("are those of the last evaluation up to a step", () => {
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
});
