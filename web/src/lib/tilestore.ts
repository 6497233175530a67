/** Tiles that are there, tiles on their way, and which to ask for next. */

import { Cache } from "./cache";
import { canvasOf } from "./pixels";
import type { HeadChoice, Matrix, MatrixStep, SiteMeta, Source } from "./source";
import { sizeAt, TILE, tileName, type TilePlace } from "./tiles";

export interface Tile extends Matrix {
  picture: HTMLCanvasElement;
}

type Loader = (level: number, row: number, column: number) => Promise<Matrix>;

/** Where tiles come from; `allowed` gives those of the mask, where there is one: 1 for keys that may be attended. */
export type TileLoader = Loader & { allowed?: Loader };

/** The tiles of one step of a site's head, with those of its mask. */
export function tilesOf(
  source: Pick<Source, "ask">,
  id: string,
  site: Pick<SiteMeta, "name" | "arithmetic"> | null,
  head: HeadChoice,
  step: MatrixStep = "weight",
  rollout = false,
): TileLoader {
  const of =
    (step: MatrixStep): Loader =>
    (level, row, column) =>
      source.ask("tile", {
        trace: id,
        site: site?.name ?? "",
        head,
        step,
        level,
        row,
        column,
        ...(rollout ? { rollout: 1 } : {}),
      });
  return Object.assign(of(step), site?.arithmetic.masks ? { allowed: of("allowed") } : {});
}

/** The highest number of each row of a matrix, at any level; a row of tiles is read once. */
export class RowMaxima {
  private readonly bands = new Map<string, Promise<Float32Array>>();

  constructor(
    private readonly load: Loader,
    private readonly columns: number,
  ) {}

  /** Return them for the rows of a tile: they are the highest of all keys, not of the tile's alone. */
  of({ level, row }: TilePlace): Promise<Float32Array> {
    const name = `${level}/${row}`;
    const known = this.bands.get(name) ?? this.read(level, row);
    this.bands.set(name, known);
    known.catch(() => this.bands.delete(name));
    return known;
  }

  private async read(level: number, row: number): Promise<Float32Array> {
    let highest = new Float32Array(0);
    for (let column = 0; column * TILE < sizeAt(level, this.columns); column++) {
      const { rows, columns, data } = await this.load(level, row, column);
      if (highest.length === 0) highest = new Float32Array(rows);
      for (let cell = 0; cell < data.length; cell++) {
        const at = Math.floor(cell / columns);
        if (data[cell] > highest[at]) highest[at] = data[cell];
      }
    }
    return highest;
  }
}

const BYTES = 64 * 2 ** 20;
const AT_ONCE = 3;

/** The tiles of one matrix, each number as a colour; at most 64 MiB of them stay. */
export class TileStore {
  private readonly kept = new Cache<Tile>(BYTES);
  private readonly asked = new Set<string>();
  private wanted: TilePlace[] = [];
  private closed = false;

  constructor(
    private readonly load: Loader,
    /** The colour of a number: its bytes red, green, blue and opacity, the first the lowest. */
    private readonly colour: (value: number) => number,
    private readonly arrived: () => void,
    private readonly failed: (error: unknown) => void,
    /** Where it is given, colours are those of shares of the row's highest number. */
    private readonly maxima: RowMaxima | null = null,
  ) {}

  get(place: TilePlace): Tile | undefined {
    return this.kept.get(tileName(place));
  }

  /** The number of a cell, if its own tile is there. */
  cell(query: number, key: number): number | undefined {
    const tile = this.get({ level: 0, row: Math.floor(query / TILE), column: Math.floor(key / TILE) });
    return tile?.data[(query % TILE) * tile.columns + (key % TILE)];
  }

  /** What is wanted now, the most needed first; what was wanted before and has not been asked for is dropped. Nothing of
   * a matrix whose place another has taken: what is seen may be of the other's size by then. */
  want(places: TilePlace[]): void {
    if (this.closed) return;
    this.wanted = places.filter((place) => this.get(place) === undefined && !this.asked.has(tileName(place)));
    this.next();
  }

  close(): void {
    this.closed = true;
    this.kept.clear();
  }

  private next(): void {
    while (this.asked.size < AT_ONCE && this.wanted.length > 0) void this.fetch(this.wanted.shift()!);
  }

  private async fetch(place: TilePlace): Promise<void> {
    const name = tileName(place);
    this.asked.add(name);
    try {
      const matrix = await this.load(place.level, place.row, place.column);
      const highest = (await this.maxima?.of(place)) ?? null;
      if (this.closed) return;
      this.kept.set(name, { ...matrix, picture: this.paint(matrix, highest) }, matrix.data.byteLength * 2);
      this.arrived();
    } catch (error) {
      if (!this.closed) this.failed(error);
    } finally {
      this.asked.delete(name);
      if (!this.closed) this.next();
    }
  }

  private paint(matrix: Matrix, highest: Float32Array | null): HTMLCanvasElement {
    const pixels = new Uint32Array(matrix.data.length);
    for (let index = 0; index < pixels.length; index++) {
      const most = highest?.[Math.floor(index / matrix.columns)] ?? 1;
      pixels[index] = this.colour(matrix.data[index] / (most || 1));
    }
    return canvasOf(pixels, matrix.columns);
  }
}
