import { describe, expect, it } from "vitest";

import { read } from "../lib/address";
import type { Meta, RunFacts } from "../lib/source";
import { CLOSED } from "../lib/state.svelte";
import { canCompare, isComparing, openedBeside } from "./opening";

const RUN = { step: 90, target: "writes", examples: [{ source: "one" }, { source: "two" }] } as RunFacts;
const META = { sides: { decoder: { ids: [1, 7, 8] } } } as unknown as Meta;
const HERE = {
  address: "#/head?source=one&site=decoder.0.cross&head=2&beside=off",
  request: { source: "one", target: null, step: null, edits: [] },
  run: RUN,
  meta: META,
  steps: [0, 1, 90],
  step: 90,
};

describe("what is opened beside", () => {
  it("is the untrained model with the same text, output, view and head", () => {
    const opened = read(openedBeside(HERE));
    expect(opened).toMatchObject({ view: "head", site: "decoder.0.cross", head: 2, beside: null });
    expect(opened.request).toMatchObject({ source: "one", target: [7, 8], step: 0 });
  });

  it("is the trained model where the untrained one is shown", () => {
    expect(read(openedBeside({ ...HERE, step: 0 })).request?.step).toBeNull();
  });

  it("is another text where there is one step", () => {
    expect(read(openedBeside({ ...HERE, steps: [90] })).request).toMatchObject({ source: "two", target: null });
    const alone = { ...RUN, examples: [{ source: "one" }] } as RunFacts;
    expect(read(openedBeside({ ...HERE, steps: [90], run: alone })).request?.source).toBe("one");
  });

  it("is the second run, with the text and without ids of the first one's tokens", () => {
    const run = { ...RUN, beside: "other" } as RunFacts;
    const request = { ...HERE.request, target: [7, 8], step: 1 };
    expect(read(openedBeside({ ...HERE, run, request })).request).toMatchObject({
      source: "one",
      target: null,
      step: null,
    });
    const words = { ...HERE.request, target: "zwei" };
    expect(read(openedBeside({ ...HERE, run, request: words })).request?.target).toBe("zwei");
  });

  it("can be opened once, and only where the page can hold two", () => {
    const explorer = { comparable: true, meta: META };
    expect([null, CLOSED, "#/head"].map((beside) => isComparing({ beside }))).toEqual([false, false, true]);
    expect([null, CLOSED, "#/head"].map((beside) => canCompare({ ...explorer, beside }))).toEqual([true, true, false]);
    expect(canCompare({ ...explorer, beside: null, comparable: false })).toBe(false);
    expect(canCompare({ ...explorer, beside: null, meta: null })).toBe(false);
  });
});
