import { describe, expect, it } from "vitest";

import { read, type State, write } from "./address";

const STATE: State = {
  view: "head",
  request: {
    source: "ein Satz? & #1",
    target: "a sentence",
    edits: [{ at: "decoder.1.cross", step: "context", head: 3, times: 0 }],
    step: 150,
  },
  unchanged: true,
  site: "decoder.1.cross",
  head: 3,
  query: 2,
  key: 0,
  theme: "dark",
  beside: "#/head?source=zwei+%26+drei&head=1",
  own: { beam: "4" },
};

describe("the address", () => {
  it("gives back the state it was written from", () => {
    expect(read(write(STATE))).toEqual(STATE);
  });

  it("keeps a target of ids apart from a target of text", () => {
    const request = { source: "x", target: [4, 5], edits: [], step: null };
    expect(read(write({ ...STATE, request })).request).toEqual(request);
    expect(read(write({ ...STATE, request: { ...request, target: "4,5" } })).request?.target).toBe("4,5");
  });

  it("keeps the ends of lines and the spaces of a text", () => {
    const request = { source: "to be,\n  or not\n", target: "a\nb", edits: [], step: null };
    expect(read(write({ ...STATE, request })).request).toEqual(request);
  });

  it("keeps the mean over heads", () => {
    expect(read(write({ ...STATE, head: "mean" })).head).toBe("mean");
  });

  it("an empty one opens the model and asks for nothing", () => {
    expect(read("")).toMatchObject({ view: "model", request: null, site: null, head: 0, query: null, own: {} });
  });

  it("what cannot be read is left out", () => {
    const state = read("#/nonsense?head=abc&query=-1&edits={&source=x");
    expect(state).toMatchObject({ view: "model", head: 0, query: null });
    expect(state.request?.edits).toEqual([]);
  });
});
