import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { crc32, handIn, PupilRecord } from "./record.svelte";

const store = new Map<string, string>();

beforeEach(() => {
  store.clear();
  vi.stubGlobal("localStorage", {
    getItem: (key: string) => store.get(key) ?? null,
    setItem: (key: string, value: string) => store.set(key, value),
  });
});
afterEach(() => vi.unstubAllGlobals());

describe("what a pupil did", () => {
  it("is kept in the browser, and a guess counts once", () => {
    let now = 1_000;
    const record = new PupilRecord("Attention", () => now);
    record.tried();
    record.guessed("own-1", 2);
    now = 121_000;
    record.guessed("own-1", 0);
    record.hinted();
    record.solve("reverse");
    record.answered("reverse", { lines: "width | line 1" });
    const again = new PupilRecord("Attention", () => now);
    expect(again.kept).toEqual({
      begun: 1_000,
      last: 121_000,
      tries: 2,
      hints: 1,
      guesses: { "own-1": 2 },
      solved: ["reverse"],
      answers: { reverse: { lines: "width | line 1" } },
      without: [],
    });
    expect(new PupilRecord("Another", () => now).kept.tries).toBe(0);
  });

  it("is not lost where a browser keeps nothing", () => {
    vi.stubGlobal("localStorage", {
      getItem: () => {
        throw new Error("no");
      },
    });
    const record = new PupilRecord("Attention");
    record.tried();
    expect(record.kept.tries).toBe(1);
  });
});

describe("the line to hand in", () => {
  it("is the one that the command reads", () => {
    const kept = { begun: 0, last: 12 * 60_000, tries: 4, hints: 1, guesses: {}, solved: [], answers: {}, without: [] };
    const line = handIn(" Zoë;  9b ", "Attention", ["tokens", "own-3"], ["softmax"], kept);
    expect(line).toBe("clearhead-2; Zoë, 9b; Attention; tokens own-3; softmax; 4; 1; 12; 257f298f");
  });

  it("has the checksum of everybody", () => {
    expect(crc32("123456789")).toBe("cbf43926");
  });
});
