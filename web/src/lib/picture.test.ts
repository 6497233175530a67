import { describe, expect, it } from "vitest";

import type { Inks } from "./heat";
import { type HeatFigure, heatSvg, MOST_CELLS, numbersTable, scaleWords, tickText, wrapped } from "./picture";
import { linear, scaleFor } from "./scale";
import type { Matrix } from "./source";
import { finePercent, isolated } from "./words";

const LETTER = 7;
const inks = { ground: "#fff", masked: "#eee", hatch: "#999" } as Inks;

function square(n: number, weight: (query: number, key: number) => number): Matrix {
  const data = Float32Array.from({ length: n * n }, (_, cell) => weight(Math.floor(cell / n), cell % n));
  return { rows: n, columns: n, data };
}

function figure(n: number, more: Partial<HeatFigure> = {}): HeatFigure {
  const names = Array.from({ length: n }, (_, place) => `w${place}`);
  return {
    title: "Weights of a head",
    caption: ["Run a", "Text: x"],
    what: "weight",
    scale: linear(0, 1),
    colours: "sequential",
    theme: "light",
    cells: square(n, (query, key) => (key <= query ? 1 / (query + 1) : 0)),
    pool: 1,
    maxima: null,
    allowed: square(n, (query, key) => Number(key <= query)),
    queries: names,
    keys: names,
    first: { query: 0, key: 0 },
    writes: false,
    inks,
    sans: "sans",
    mono: "mono",
    measure: (text) => text.length * LETTER,
    image: () => "data:image/png;base64,",
    ...more,
  };
}

describe("the drawing of a map", () => {
  it("has a rectangle for each cell that may be attended, and one hatched shape a row for the others", () => {
    const drawn = heatSvg(figure(4));
    expect(drawn.match(/<title>w\d looks at w\d: /g)).toHaveLength(10);
    expect(/data-part="masked" d="([^"]*)"/.exec(drawn)?.[1].match(/M/g)).toHaveLength(3);
    expect(drawn).toContain("w3 looks at w0: 25.0 %");
    expect(drawn).not.toContain("NaN");
  });

  it("is one image past a bound, so that the file stays small", () => {
    const n = Math.ceil(Math.sqrt(MOST_CELLS)) + 1;
    const drawn = heatSvg(figure(n));
    expect(drawn.match(/<image /g)).toHaveLength(1);
    expect(drawn.length).toBeLessThan(60_000);
    expect(heatSvg(figure(50)).match(/<image /g)).toBeNull();
  });

  it("writes tokens that XML has no letters for, and those that would end its elements", () => {
    const drawn = heatSvg(figure(2, { queries: ["</svg>\u0001", '"&'], keys: ["<b>", isolated("ثلاثة")] }));
    expect(drawn).not.toContain("\u0001");
    expect(drawn).toContain("&lt;/svg&gt;\ufffd");
    expect(drawn.match(/<\/svg>/g)).toHaveLength(1);
  });

  it("cuts a long token in the margin, and is as wide as what it says", () => {
    const drawn = heatSvg(figure(2, { queries: ["x".repeat(200), "y"] }));
    expect(drawn).toMatch(/>x{30,40}…</);
    const [, width] = /<svg [^>]*width="(\d+)"/.exec(drawn)!;
    expect(Number(width)).toBeLessThan(600);
  });

  it("colours a row by its own highest weight where the scale is per row", () => {
    const row = scaleFor(
      "row",
      square(1, () => 0.1),
    );
    const fills = (svg: string): string[] => [...svg.matchAll(/fill="(#\w{6})"><title>/g)].map((found) => found[1]);
    const even = figure(3, { scale: row, maxima: Float32Array.from([1, 0.5, 1 / 3]) });
    expect(new Set(fills(heatSvg(even))).size).toBe(1);
    expect(new Set(fills(heatSvg(figure(3)))).size).toBe(3);
  });
});

it("a caption is broken into lines, and a word that is too long within itself", () => {
  const lines = wrapped(`a bb ${"三".repeat(25)} c`, (text) => text.length, 10);
  expect(lines.every((line) => line.length <= 10)).toBe(true);
  expect(lines.join("").replaceAll(" ", "")).toBe(`abb${"三".repeat(25)}c`);
});

it("weights are told in percent, and other numbers as they are", () => {
  expect([0.62314, 0.0000132, 0.05, 1, 0].map(finePercent)).toEqual(["62.3 %", "0.00132 %", "5.00 %", "100 %", "0 %"]);
  expect(scaleWords(linear(0, 0.5), "weight")).toBe("weight from 0 % to 50 %");
  expect(tickText(-2, linear(-2, 2), "difference")).toBe("−2");
});

it("numbers to paste have their tokens, and nothing where a cell is masked", () => {
  const cells = square(2, (query, key) => (query + key) / 3);
  const allowed = square(2, (query, key) => Number(key <= query));
  expect(numbersTable(cells, allowed, ["a\tb", "c"], ["d", "e"])).toBe("\td\te\na b\t0\t\nc\t0.3333333\t0.6666667\n");
});
