import { describe, expect, it } from "vitest";

import type { RunFacts, Sampled, SampleStep } from "../../lib/source";
import { blockFor, modeOf, MOST, progressOf, settingsOf, stretchesOf, textOf } from "./sampling";

const run = (target: RunFacts["target"], more: Partial<RunFacts> = {}): RunFacts => ({ target, ...more }) as RunFacts;

it("the method is the address's, else sampling for a run that continues texts", () => {
  expect(modeOf({ mode: "greedy" }, run("continues"))).toBe("greedy");
  expect(modeOf({ beam: "2" }, run("continues"))).toBe("beam");
  expect(modeOf({}, run("continues"))).toBe("sample");
  expect(modeOf({ mode: "odd" }, run("writes"))).toBe("beam");
  expect(modeOf({}, run("continues", { program: {} as RunFacts["program"] }))).toBe("beam");
  expect(modeOf({}, null)).toBe("beam");
});

describe("the settings", () => {
  it("are what clearhead generate has, unless the address says otherwise", () => {
    expect(settingsOf({})).toEqual({ temperature: 0.8, topK: null, topP: 1, seed: 0, tokens: 0 });
    const own = { temperature: "1.5", top_k: "3", top_p: "0.9", seed: "12", tokens: "4" };
    expect(settingsOf(own)).toEqual({ temperature: 1.5, topK: 3, topP: 0.9, seed: 12, tokens: 4 });
  });

  it("leave out what cannot be", () => {
    const own = { temperature: "0", top_k: "0", top_p: "1.2", seed: "-1", tokens: "9999" };
    expect(settingsOf(own)).toEqual(settingsOf({}));
    expect(settingsOf({ temperature: "x", top_k: "1.5", seed: "" })).toEqual(settingsOf({}));
  });
});

it("what is asked for has the next token too, and is the same for a few more of them", () => {
  expect([0, 7, 8, 31, 99, MOST].map(blockFor)).toEqual([8, 8, 32, 32, 100, 200]);
});

const step = (token: number, after: number, begins: number, shares: number[]): SampleStep => ({
  token,
  text: `t${token}`,
  p: after,
  after,
  begins,
  drawn: begins,
  left: 9,
  candidates: shares.map((share, id) => ({
    id,
    text: `t${id}`,
    p: share,
    after: share,
    cut: share > 0 ? "" : "top_k",
  })),
});

const sampled = (n: number, more: Partial<Sampled> = {}): Sampled => ({
  steps: Array.from({ length: n }, () => step(0, 1, 0, [1])),
  text: "a😀b",
  ends: [1, 1, 2, 3],
  ids: [],
  ended: false,
  room: 20,
  source_tokens: [],
  cross: null,
  edits: [],
  ...more,
});

describe("how far it is", () => {
  it("is done where the model ended, or no room is left", () => {
    expect(progressOf(sampled(4), 2)).toEqual({ shown: 2, done: "" });
    expect(progressOf(sampled(4), 9)).toEqual({ shown: 4, done: "" });
    expect(progressOf(sampled(4, { ended: true }), 9)).toEqual({ shown: 4, done: "ended" });
    expect(progressOf(sampled(4, { ended: true }), 3)).toEqual({ shown: 3, done: "" });
    expect(progressOf(sampled(20), 25)).toEqual({ shown: 20, done: "full" });
  });

  it("counts characters of the text, and holds back half a character", () => {
    expect([0, 1, 2, 3, 4].map((shown) => textOf(sampled(4), shown))).toEqual(["", "a", "a", "a😀", "a😀b"]);
  });
});

describe("the strip", () => {
  it("lays the probabilities side by side, the likeliest first", () => {
    const found = stretchesOf(step(1, 0.3, 0.5, [0.5, 0.3, 0.15, 0]));
    expect(found.map(({ id }) => id)).toEqual([0, 1, 2, null]);
    expect(found.map(({ to }) => to)).toEqual([0.5, 0.8, expect.closeTo(0.95), 1]);
  });

  it("has what lies between where an unlikely token came", () => {
    const odd = step(7, 0.01, 0.9, [0.5, 0.3]);
    odd.candidates.push({ id: 7, text: "t7", p: 0.01, after: 0.01, cut: "" });
    const found = stretchesOf(odd);
    expect(found.map(({ id }) => id)).toEqual([0, 1, null, 7, null]);
    expect(found.map(({ from }) => from)).toEqual([0, 0.5, 0.8, 0.9, expect.closeTo(0.91)]);
  });

  it("ends where all are there", () => {
    expect(stretchesOf(step(0, 0.6, 0, [0.6, 0.4])).map(({ id }) => id)).toEqual([0, 1]);
  });
});
