/** Tiles that are there, tiles on their way, and which to ask for next. */

import { Cache } from "./cache";
import type { HeadChoice, Matrix, MatrixStep, SiteMeta, Source } from "./source";
import { TILE, tileName, type TilePlace } from "./tiles";

export interface Tile extends Matrix {
  picture: HTMLCanvasElement;
}

type Loader = (level: number, row: number, column: number) => Promise<Matrix>;

/** Where tiles come from; `allowed` gives those of the mask, where there is one: 1 for keys that may be attended. */
export type TileLoader = Loader & { allowed?: Loader };

/** The tiles of one step of a site's head, with those of its mask. */
export function tilesOf(
  source: Pick<Source, "tile">,
  id: string,
  site: Pick<SiteMeta, "name" | "arithmetic"> | null,
  head: HeadChoice,
  step: MatrixStep = "weight",
): TileLoader {
  const of =
    (step: MatrixStep): Loader =>
    (level, row, column) =>
      source.tile(id, { site: site?.name ?? "", head, step, level, row, column });
  return Object.assign(of(step), site?.arithmetic.masks ? { allowed: of("allowed") } : {});
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
  ) {}

  get(place: TilePlace): Tile | undefined {
    return this.kept.get(tileName(place));
  }

  /** The number of a cell, if its own tile is there. */
  cell(query: number, key: number): number | undefined {
    const tile = this.get({ level: 0, row: Math.floor(query / TILE), column: Math.floor(key / TILE) });
    return tile?.data[(query % TILE) * tile.columns + (key % TILE)];
  }

  /** What is wanted now, the most needed first; what was wanted before and has not been asked for is dropped. */
  want(places: TilePlace[]): void {
    this.wanted = places.filter((place) => this.get(place) === undefined && !this.asked.has(tileName(place)));
    this.next();
  }

  /** Waits until these are there. */
  async ready(places: TilePlace[]): Promise<void> {
    await Promise.all(places.filter((place) => this.get(place) === undefined).map((place) => this.fetch(place)));
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
      if (this.closed) return;
      this.kept.set(name, { ...matrix, picture: this.paint(matrix) }, matrix.data.byteLength * 2);
      this.arrived();
    } catch (error) {
      if (!this.closed) this.failed(error);
    } finally {
      this.asked.delete(name);
      if (!this.closed) this.next();
    }
  }

  private paint(matrix: Matrix): HTMLCanvasElement {
    const picture = document.createElement("canvas");
    picture.width = matrix.columns;
    picture.height = matrix.rows;
    const pixels = new ImageData(matrix.columns, matrix.rows);
    const whole = new Uint32Array(pixels.data.buffer);
    for (let index = 0; index < whole.length; index++) whole[index] = this.colour(matrix.data[index]);
    picture.getContext("2d")!.putImageData(pixels, 0, 0);
    return picture;
  }
}
