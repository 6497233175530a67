/** Small pictures of heads. */

import { type Shade, table } from "./colours";
import { shareOf, weightScale } from "./scale";
import type { Matrix, Thumbs } from "./source";

/** Bytes of weight 1, and of a masked place. */
const WHOLE = 254;
export const MASKED = 255;
/** The ground of masked places: grey, which no weight is. */
const GREY: Record<Shade, [number, number, number, number]> = {
  light: [214, 211, 205, 255],
  dark: [62, 66, 72, 255],
};

/** A weight as a byte of a thumbnail. */
export function thumbByte(weight: number): number {
  return Math.round(Math.sqrt(Math.min(1, Math.max(0, weight))) * WHOLE);
}

/** The weights of one head out of the bytes; NaN where all keys are masked. */
export function thumbWeights({ rows, columns, data }: Thumbs, head: number): Matrix {
  const size = rows * columns;
  const bytes = data.subarray(head * size, (head + 1) * size);
  return {
    rows,
    columns,
    data: Float32Array.from(bytes, (byte) => (byte === MASKED ? NaN : (byte / WHOLE) ** 2)),
  };
}

/** Paints one head's weights, a pixel a cell, on a scale of its own: a pattern that is there is seen. */
export function paintThumb(canvas: HTMLCanvasElement, thumbs: Thumbs, head: number, theme: Shade): void {
  const { rows, columns } = thumbs;
  const weights = thumbWeights(thumbs, head);
  const scale = weightScale(weights);
  const pixels = new ImageData(columns, rows);
  const colours = table("sequential", theme);
  for (let cell = 0; cell < rows * columns; cell++) {
    const step = Math.round(shareOf(weights.data[cell], scale) * 255) * 4;
    const masked = Number.isNaN(weights.data[cell]);
    pixels.data.set(masked ? GREY[theme] : colours.subarray(step, step + 4), cell * 4);
  }
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d")!.putImageData(pixels, 0, 0);
}

/** Addresses that were made: of a deep model hundreds are asked for again whenever another layer arrives. */
const made = new WeakMap<Thumbs, Map<string, string>>();

/** The same as an address that an image can show. */
export function thumbAddress(thumbs: Thumbs, head: number, theme: Shade): string {
  const known = made.get(thumbs) ?? new Map<string, string>();
  made.set(thumbs, known);
  const name = `${theme} ${head}`;
  let address = known.get(name);
  if (address === undefined) {
    const canvas = document.createElement("canvas");
    paintThumb(canvas, thumbs, head, theme);
    known.set(name, (address = canvas.toDataURL()));
  }
  return address;
}
