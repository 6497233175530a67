import { describe, expect, it } from "vitest";

import type { EditJson } from "./source";
import { begun, did, redone, undone } from "./history";

const [A, B, C] = ["a", "b", "c"].map((at): EditJson[] => [{ at, weighting: "argmax" }]);

describe("history", () => {
  it("goes back and forth over the same lists", () => {
    const history = did(did(begun(), A), B);
    expect(undone(history).now).toEqual(A);
    expect(undone(undone(history)).now).toEqual([]);
    expect(redone(undone(history))).toEqual(history);
    expect(redone(redone(undone(undone(history))))).toEqual(history);
  });

  it("stays at its ends", () => {
    expect(undone(begun(A))).toEqual(begun(A));
    expect(redone(did(begun(), A)).now).toEqual(A);
  });

  it("forgets what was undone once something else is done", () => {
    const other = did(undone(did(did(begun(), A), B)), C);
    expect(redone(other)).toEqual(other);
    expect(undone(other).now).toEqual(A);
  });

  it("does not grow for ever", () => {
    let history = begun();
    for (let time = 0; time < 300; time++) history = did(history, A);
    expect(history.past.length).toBeLessThanOrEqual(100);
  });
});
