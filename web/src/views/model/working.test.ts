import { describe, expect, it } from "vitest";

import { recorded as source } from "../../../dev/recorded";
import { boxTitle, boxWords, firstPlaces, inWords, largestPlaces, rowsOf, workedOut } from "./working";

const run = await source.ask("run", {});
const meta = await source.ask("trace", { source: "achtundvierzigtausendsiebenundsechzig" });
const [encoder, decoder] = run.sides;
const boxNamed = (name: string) => [...encoder.boxes, ...decoder.boxes].find((box) => box.name === name)!;
const numbersOf = (name: string) => source.ask("box", { trace: meta.id, box: name, token: 1, key: 0, head: 0 });

describe("the title of a box", () => {
  it.each([
    ["encoder.0.attention.norm", "Encoder 0 · self-attention · norm"],
    ["encoder.1.feed_forward", "Encoder 1 · feed-forward"],
    ["encoder.1.feed_forward.add", "Encoder 1 · feed-forward · add"],
    ["encoder.embedding.position", "Encoder · position"],
    ["encoder.norm", "Encoder · last norm"],
  ])("of %s is %s", (name, title) => {
    expect(boxTitle("encoder", boxNamed(name))).toBe(title);
  });

  it("goes with words of the kind of box, and of the layer's own sizes", () => {
    expect(boxWords(boxNamed("encoder.0.feed_forward"), encoder)).toContain("128 → 256 → 128");
    for (const box of decoder.boxes) expect(boxWords(box, decoder)).not.toContain("undefined");
  });
});

describe("the rows of a box", () => {
  it("are what comes in, and then every value of it", async () => {
    const box = boxNamed("encoder.0.attention.norm");
    const rows = rowsOf(box, await numbersOf(box.name));
    expect(rows.map((row) => row.label)).toEqual(["x", "mean", "variance", "normalized", "gamma", "beta", "normed"]);
    expect(rows[0].name).toBe("encoder.embedding.out");
  });

  it("of a sum are both its terms and their sum", async () => {
    const box = boxNamed("encoder.0.attention.add");
    const rows = rowsOf(box, await numbersOf(box.name));
    expect(rows.map((row) => row.name)).toEqual([
      "encoder.embedding.out",
      "encoder.0.attention.out",
      "encoder.0.attention.residual",
    ]);
  });

  it("leave out what the source does not have", async () => {
    const box = boxNamed("encoder.0.feed_forward");
    const { values } = await numbersOf(box.name);
    const rows = rowsOf(box, {
      values: { "encoder.0.feed_forward.hidden": values["encoder.0.feed_forward.hidden"] },
      constants: {},
      labels: {},
    });
    expect(rows.map((row) => row.label)).toEqual(["hidden"]);
  });
});

describe("a formula", () => {
  const box = boxNamed("encoder.0.attention.norm");
  const [, , normalized, , , normed] = box.values;
  const values = {
    "encoder.embedding.out": [0.5, 2],
    "encoder.0.attention.norm.mean": [0.25],
    "encoder.0.attention.norm.variance": [1],
    "encoder.0.attention.norm.normalized": [0.25, -1.5],
    "encoder.0.attention.norm.gamma": [1, 2],
    "encoder.0.attention.norm.beta": [0, 0.5],
  };

  it("has the numbers of one place in it, and those that are the same for all", () => {
    expect(workedOut(normalized, { values, constants: {}, labels: {} }, 1)).toBe("(2.000 − 0.2500) / √(1.000 + 1e-05)");
    expect(workedOut(normed, { values, constants: {}, labels: {} }, 1)).toBe("2.000 · (−1.500) + 0.5000");
    expect(inWords(normed, box)).toBe("gamma · normalized + beta");
  });

  it("has the scale of the head where it says so", () => {
    const scaled = { ...normed, formula: "{gamma} × {scale}", operands: { gamma: "encoder.0.attention.norm.gamma" } };
    expect(workedOut(scaled, { values, constants: { scale: 0.25 }, labels: {} }, 1)).toBe("2.000 × 0.2500");
  });

  it("is left out where a number is not there, or where it is only words", () => {
    expect(workedOut(normed, { values: {}, constants: {}, labels: {} }, 1)).toBeNull();
    expect(workedOut(box.values[0], { values, constants: {}, labels: {} }, 1)).toBeNull();
  });

  it("of a linear map is its product", () => {
    const feed = boxNamed("encoder.0.feed_forward");
    expect(inWords(feed.values[0], feed)).toBe("W_up · x");
    expect(inWords(feed.values[2], feed)).toBe("W_down · hidden");
    const up = { ...feed.values[2], rows: "key" as const, map: "V_up" };
    expect(inWords(up, feed)).toBe("V_up · hidden of the key");
  });
});

describe("places", () => {
  it("that are largest come first, whatever their sign", () => {
    expect(largestPlaces([1, -3, 2], 2)).toEqual([1, 2]);
  });

  it("to open on are where the last value of each width is largest", () => {
    const row = (vector: number[]) => ({ name: "", label: "", vector, numbers: vector, made: null });
    expect(firstPlaces([row([1, 5]), row([1, 2, 3]), row([9, 5])])).toEqual(
      new Map([
        [2, 0],
        [3, 2],
      ]),
    );
  });
});
