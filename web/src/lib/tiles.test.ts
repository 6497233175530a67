import { describe, expect, it } from "vitest";

import { cutOf, fit, kept, levelFor, seen, sizeAt, TILE, tileOf, zoomed } from "./tiles";

describe("the level", () => {
  it("is exact where a cell has a pixel or more", () => {
    expect(levelFor(1, 1, 4096, 4096)).toBe(0);
    expect(levelFor(30, 2, 4096, 4096)).toBe(0);
  });

  it("pools where cells are smaller than pixels, and device pixels count", () => {
    expect(levelFor(0.25, 1, 4096, 4096)).toBe(2);
    expect(levelFor(0.25, 2, 4096, 4096)).toBe(1);
  });

  it("is never coarser than one tile for all", () => {
    expect(levelFor(1e-6, 1, 4096, 4096)).toBe(4);
    expect(levelFor(1e-6, 1, 100, 40)).toBe(0);
  });
});

describe("tiles seen", () => {
  it("are those under the screen, the middle ones first", () => {
    const places = seen({ x: 0, y: 0, zoom: 1 }, { width: 600, height: 300 }, 0, 4096, 4096);
    expect(places).toHaveLength(3 * 2);
    expect(places[0].column).toBe(1);
  });

  it("never lie outside of the matrix", () => {
    const places = seen({ x: -500, y: 3900, zoom: 1 }, { width: 5000, height: 5000 }, 0, 4096, 700);
    expect(new Set(places.map((place) => place.column))).toEqual(new Set([0, 1, 2]));
    expect(new Set(places.map((place) => place.row))).toEqual(new Set([15]));
  });
});

describe("a tile of a matrix", () => {
  const matrix = { rows: 3, columns: 5, data: Float32Array.from({ length: 15 }, (_, index) => index) };

  it("level 0 is the matrix", () => {
    expect(tileOf(matrix, 0, 0, 0)).toEqual(matrix);
  });

  it("level 1 has the highest of four, fewer at the edges", () => {
    const tile = tileOf(matrix, 1, 0, 0);
    expect([tile.rows, tile.columns]).toEqual([2, 3]);
    expect([...tile.data]).toEqual([6, 8, 9, 11, 13, 14]);
    expect(sizeAt(1, 5)).toBe(3);
  });

  it("the last tile is as small as what is left", () => {
    const wide = { rows: 1, columns: TILE + 3, data: new Float32Array(TILE + 3).fill(1) };
    expect(tileOf(wide, 0, 0, 1)).toMatchObject({ rows: 1, columns: 3 });
  });
});

describe("a cut of a matrix", () => {
  const wide = { rows: 4, columns: 600, data: Float32Array.from({ length: 2400 }, (_, index) => index) };

  it("is put together from the tiles it lies in", async () => {
    const load = async (level: number, row: number, column: number) => tileOf(wide, level, row, column);
    const cut = await cutOf(load, { first: 1, count: 2 }, { first: 250, count: 300 });
    expect([cut.rows, cut.columns]).toEqual([2, 300]);
    expect([cut.data[0], cut.data[5], cut.data[6], cut.data[299], cut.data[300]]).toEqual([850, 855, 856, 1149, 1450]);
  });
});

describe("a viewport", () => {
  const screen = { width: 400, height: 400 };

  it("stays inside the matrix", () => {
    expect(kept({ x: -10, y: 990, zoom: 4 }, screen, 1000, 1000)).toEqual({ x: 0, y: 900, zoom: 4 });
  });

  it("goes no further out than all of it, no further in than 64 pixels a cell", () => {
    expect(kept({ x: 0, y: 0, zoom: 0.001 }, screen, 1000, 1000).zoom).toBe(fit(screen, 1000, 1000));
    expect(kept({ x: 0, y: 0, zoom: 500 }, screen, 1000, 1000).zoom).toBe(64);
  });

  it("zooms about a point that stays where it is", () => {
    const before = { x: 10, y: 20, zoom: 2 };
    const after = zoomed(before, 3, { x: 100, y: 50 });
    expect(after.x + 100 / after.zoom).toBeCloseTo(10 + 100 / 2, 12);
    expect(after.y + 50 / after.zoom).toBeCloseTo(20 + 50 / 2, 12);
  });
});
