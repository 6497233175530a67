/** Tiles of a matrix: which are seen at a zoom level, and tiles made from a matrix that is all there. */

import type { Matrix } from "./source";

/** Cells along a tile's side. */
export const TILE = 256;

/** What is seen: the cell at the left top corner, and screen pixels a cell. */
export interface Viewport {
  x: number;
  y: number;
  zoom: number;
}

export interface Extent {
  width: number;
  height: number;
}

export interface TilePlace {
  level: number;
  row: number;
  column: number;
}

/** The level whose cells are nearest to a device pixel, never smaller than one: level L pools 2^L × 2^L cells. */
export function levelFor(zoom: number, ratio: number, n_rows: number, n_columns: number): number {
  const deepest = Math.max(0, Math.ceil(Math.log2(Math.max(n_rows, n_columns, 1) / TILE)));
  const wanted = Math.floor(Math.log2(1 / Math.max(zoom * ratio, 1e-9)));
  return Math.min(deepest, Math.max(0, wanted));
}

/** Rows or columns of the matrix at a level. */
export function sizeAt(level: number, count: number): number {
  return Math.ceil(count / 2 ** level);
}

/** The tiles of a level that a screen of this size shows, those in the middle first. */
export function seen(
  viewport: Viewport,
  screen: Extent,
  level: number,
  n_rows: number,
  n_columns: number,
): TilePlace[] {
  const span = TILE * 2 ** level;
  const columns = range(viewport.x / span, (viewport.x + screen.width / viewport.zoom) / span, n_columns / span);
  const rows = range(viewport.y / span, (viewport.y + screen.height / viewport.zoom) / span, n_rows / span);
  const found = rows.flatMap((row) => columns.map((column) => ({ level, row, column })));
  const middle = { row: mean(rows), column: mean(columns) };
  const far = (place: TilePlace): number => Math.abs(place.row - middle.row) + Math.abs(place.column - middle.column);
  return found.sort((a, b) => far(a) - far(b));
}

export function tileName(place: TilePlace): string {
  return `${place.level}/${place.row}/${place.column}`;
}

/** One tile of a matrix: each cell the highest of the 2^level × 2^level cells it stands for. */
export function tileOf(matrix: Matrix, level: number, row: number, column: number): Matrix {
  const pool = 2 ** level;
  const rows = Math.min(TILE, sizeAt(level, matrix.rows) - row * TILE);
  const columns = Math.min(TILE, sizeAt(level, matrix.columns) - column * TILE);
  const data = new Float32Array(rows * columns);
  for (let y = 0; y < rows; y++)
    for (let x = 0; x < columns; x++)
      data[y * columns + x] = highest(matrix, (row * TILE + y) * pool, (column * TILE + x) * pool, pool);
  return { rows, columns, data };
}

export interface Span {
  first: number;
  count: number;
}

/** The numbers between two spans of a matrix, out of the tiles they lie in. */
export async function cutOf(
  load: (level: number, row: number, column: number) => Promise<Matrix>,
  rows: Span,
  columns: Span,
): Promise<Matrix> {
  const made = { rows: rows.count, columns: columns.count, data: new Float32Array(rows.count * columns.count) };
  for (const row of range(rows.first / TILE, (rows.first + rows.count) / TILE, Infinity))
    for (const column of range(columns.first / TILE, (columns.first + columns.count) / TILE, Infinity))
      copy(await load(0, row, column), row * TILE, column * TILE, made, rows.first, columns.first);
  return made;
}

/** A viewport kept inside the matrix: no further out than all of it, no further in than `closest` pixels a cell. */
export function kept(viewport: Viewport, screen: Extent, n_rows: number, n_columns: number, closest = 64): Viewport {
  const whole = fit(screen, n_rows, n_columns);
  const zoom = Math.min(Math.max(viewport.zoom, whole), Math.max(closest, whole));
  return {
    zoom,
    x: inside(viewport.x, screen.width / zoom, n_columns),
    y: inside(viewport.y, screen.height / zoom, n_rows),
  };
}

/** Pixels a cell so that the whole matrix is seen. */
export function fit(screen: Extent, n_rows: number, n_columns: number): number {
  return Math.min(screen.width / Math.max(1, n_columns), screen.height / Math.max(1, n_rows));
}

/** The same viewport, larger or smaller by a factor, with one point of the screen staying where it is. */
export function zoomed(viewport: Viewport, factor: number, at: { x: number; y: number }): Viewport {
  const zoom = viewport.zoom * factor;
  return {
    zoom,
    x: viewport.x + at.x / viewport.zoom - at.x / zoom,
    y: viewport.y + at.y / viewport.zoom - at.y / zoom,
  };
}

/** Copies what of a tile at (top, left) lies in a cut that begins at (firstRow, firstColumn). */
function copy(tile: Matrix, top: number, left: number, cut: Matrix, firstRow: number, firstColumn: number): void {
  for (let y = Math.max(0, firstRow - top); y < Math.min(tile.rows, firstRow + cut.rows - top); y++)
    for (let x = Math.max(0, firstColumn - left); x < Math.min(tile.columns, firstColumn + cut.columns - left); x++)
      cut.data[(top + y - firstRow) * cut.columns + left + x - firstColumn] = tile.data[y * tile.columns + x];
}

function highest(matrix: Matrix, top: number, left: number, pool: number): number {
  let found = -Infinity;
  for (let y = top; y < Math.min(top + pool, matrix.rows); y++)
    for (let x = left; x < Math.min(left + pool, matrix.columns); x++)
      found = Math.max(found, matrix.data[y * matrix.columns + x]);
  return found;
}

function range(from: number, to: number, end: number): number[] {
  const first = Math.max(0, Math.floor(from));
  const last = Math.min(Math.ceil(end), Math.ceil(to));
  return Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index);
}

/** Where a view of this span may begin; one wider than the matrix has the matrix in its middle. */
function inside(start: number, span: number, count: number): number {
  if (span >= count) return (count - span) / 2;
  return Math.min(Math.max(0, start), count - span);
}

function mean(values: number[]): number {
  return values.reduce((total, value) => total + value, 0) / Math.max(1, values.length);
}
