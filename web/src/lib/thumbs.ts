/** Small pictures of heads. */

import { type Shade, table } from "./colours";
import { canvasOf } from "./pixels";
import { shareOf, weightScale } from "./scale";
import type { Matrix, Thumbs } from "./source";

/** Bytes of weight 1, and of a masked place. */
const WHOLE = 254;
export const MASKED = 255;
/** The ground of masked places and the lines across it: greys, which no weight is. */
const GROUND: Record<Shade, number> = { light: 0xffe9edef, dark: 0xff2e2926 };
const LINE: Record<Shade, number> = { light: 0xff9ca5a9, dark: 0xff746b66 };
/** Pixels along a side: a cell has as many as go into it, so that hatching is seen where cells are large enough. */
const SIDE = 144;
/** Pixels from one line of the hatching to the next. */
const APART = 6;

/** A weight as a byte of a thumbnail. */
export function thumbByte(weight: number): number {
  return Math.round(Math.sqrt(Math.min(1, Math.max(0, weight))) * WHOLE);
}

/** The weights of one head out of the bytes; NaN where all keys are masked. */
function thumbWeights({ rows, columns, data }: Thumbs, head: number): Matrix {
  const size = rows * columns;
  const bytes = data.subarray(head * size, (head + 1) * size);
  return {
    rows,
    columns,
    data: Float32Array.from(bytes, (byte) => (byte === MASKED ? NaN : (byte / WHOLE) ** 2)),
  };
}

/** Paints one head's weights on a scale of its own: a pattern that is there is seen. Masked places are hatched. */
function paintThumb(thumbs: Thumbs, head: number, theme: Shade): HTMLCanvasElement {
  const { rows, columns } = thumbs;
  const weights = thumbWeights(thumbs, head);
  const scale = weightScale(weights);
  const each = Math.max(1, Math.floor(SIDE / Math.max(rows, columns, 1)));
  const pixels = new Uint32Array(columns * each * rows * each);
  const colours = new Uint32Array(table("sequential", theme).buffer);
  const cells = Uint32Array.from(weights.data, (weight) => colours[Math.round(shareOf(weight, scale) * 255)]);
  for (let y = 0; y < rows * each; y++)
    for (let x = 0; x < columns * each; x++) {
      const cell = Math.floor(y / each) * columns + Math.floor(x / each);
      const hatched = (x + y) % APART === 0 ? LINE[theme] : GROUND[theme];
      pixels[y * columns * each + x] = Number.isNaN(weights.data[cell]) ? hatched : cells[cell];
    }
  return canvasOf(pixels, columns * each);
}

/** Pictures that were painted: of a deep model hundreds are asked for again whenever another layer arrives. */
const painted = new WeakMap<Thumbs, Map<string, HTMLCanvasElement>>();

/** One head's weights, painted once. */
export function thumbPicture(thumbs: Thumbs, head: number, theme: Shade): HTMLCanvasElement {
  const known = painted.get(thumbs) ?? new Map<string, HTMLCanvasElement>();
  painted.set(thumbs, known);
  const name = `${theme} ${head}`;
  const canvas = known.get(name) ?? paintThumb(thumbs, head, theme);
  known.set(name, canvas);
  return canvas;
}
