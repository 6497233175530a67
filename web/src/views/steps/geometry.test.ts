import { describe, expect, it } from "vitest";

import { layoutOf, part } from "./geometry";

const WEIGHTS = [0.5, 0.3, 0.2, 0];

describe("part", () => {
  it("stacks the weights, one after another, up to one", () => {
    expect(part(0, WEIGHTS)).toEqual([0, 0.5]);
    expect(part(1, WEIGHTS)).toEqual([0.5, 0.8]);
    expect(part(2, WEIGHTS)[1]).toBeCloseTo(1, 12);
  });

  it("shrinks weights that sum to more than one, so that they still fit", () => {
    expect(part(1, [2, 2])).toEqual([0.5, 1]);
  });
});

describe.each([340, 390, 720, 1100, 1600])("layout at %i pixels", (width) => {
  const layout = layoutOf(width, WEIGHTS.length);

  it("keeps every box inside, left to right, without overlap in a row", () => {
    const { query, rows, sum, context } = layout;
    for (const box of [query.input, query.vector, sum, context, ...rows.flatMap((row) => [row.key, row.value])]) {
      expect(box.x).toBeGreaterThanOrEqual(0);
      expect(box.x + box.width).toBeLessThanOrEqual(width + 0.01);
      expect(box.y + box.height).toBeLessThanOrEqual(layout.height);
      expect(box.width).toBeGreaterThan(0);
    }
    for (const row of rows) {
      expect(row.key.x + row.key.width).toBeLessThan(row.token.x);
      expect(row.token.x).toBeLessThan(row.value.x);
    }
    rows.slice(1).forEach((row, index) => expect(row.y - rows[index].y).toBe(layout.rowHeight));
  });

  it("is no taller without the query’s input", () => {
    const less = layoutOf(width, WEIGHTS.length, false);
    expect(less.height).toBeLessThanOrEqual(layout.height);
    expect(less.query.token.y).toBeLessThan(less.query.vector.y);
    expect(less.query.vector.y).toBeLessThan(layout.wide ? layout.height : less.rows[0].y);
  });

  it("leads each flow from its value to the sum, in proportion to its weight", () => {
    const start = layout.along(0, WEIGHTS, 0);
    const end = layout.along(0, WEIGHTS, 1);
    expect(start.y).toBeCloseTo(layout.rows[0].y);
    expect(end.y).toBeGreaterThanOrEqual(layout.sum.y);
    expect(end.y).toBeLessThanOrEqual(layout.sum.y + layout.sum.height);
    expect(layout.flow(0, WEIGHTS, 1).path).not.toContain("NaN");
    const [first, second] = [0, 1].map((row) => layout.flow(row, WEIGHTS, 1).line);
    if (first !== null && second !== null) expect(first / second).toBeCloseTo(5 / 3);
  });
});
