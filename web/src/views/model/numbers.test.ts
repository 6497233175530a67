import { describe, expect, it } from "vitest";

import { recorded as source } from "../../../dev/recorded";
import { countsOf, diagramOf } from "../../lib/layout";
import { tokenDetails } from "./details";
import { curvePath, curvesOf, knotsOf, normRange, thickness } from "./numbers";

const run = await source.ask("run", {});
const meta = await source.ask("trace", { source: "achtundvierzigtausendsiebenundsechzig" });
const streams = {
  encoder: await source.ask("stream", { trace: meta.id, side: "encoder" }),
  decoder: await source.ask("stream", { trace: meta.id, side: "decoder" }),
};
const lens = await source.ask("lens", { trace: meta.id });
const diagram = diagramOf(run, countsOf(meta), 1040);
const known = { run, meta, streams, lens };

describe("curves", () => {
  const cut = {
    rows: 2,
    columns: 2,
    data: Float32Array.of(0.9, 0.1, 0.01, 0.99),
    queries: { first: 4, count: 2 },
    keys: { first: 7, count: 2 },
  };

  it("are the weights worth drawing, numbered as in the whole text, the strongest last", () => {
    expect(curvesOf(cut).map(({ query, key }) => [query, key])).toEqual([
      [4, 8],
      [4, 7],
      [5, 8],
    ]);
  });

  it("leave and arrive level", () => {
    expect(curvePath(0, 1, 100, 9)).toMatch(/^M0 1C\S+ 1 \S+ 9 100 9$/);
  });
});

describe("lanes", () => {
  it("have a knot wherever the stream is known", () => {
    const knots = knotsOf(diagram.sides[1], streams.decoder, 3);
    expect(knots).toHaveLength(streams.decoder.rows.length);
    expect(knots.map((knot) => knot.x)).toEqual([...knots.map((knot) => knot.x)].sort((a, b) => a - b));
  });

  it("are thicker where vectors are longer, within bounds", () => {
    const [least, most] = normRange(Object.values(streams));
    expect(thickness(least, least, most)).toBeCloseTo(1.6);
    expect(thickness(most, least, most)).toBeCloseTo(6.6);
    expect(thickness(0, least, most)).toBe(2.5);
    expect(normRange([undefined])).toEqual([Infinity, 0]);
  });
});

it("details of a token are its numbers along the way, with the lens where it reads", () => {
  const details = tokenDetails("decoder", 1, known);
  expect(details.rows).toHaveLength(streams.decoder.rows.length);
  expect(details.rows!.filter((row) => row.guesses)).toHaveLength(lens.layers.length);
});
