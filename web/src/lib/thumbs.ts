/** Small pictures of heads. */

import { type Shade, table } from "./colours";
import type { Thumbs } from "./source";

/** Paints one head's weights, a pixel a cell. */
export function paintThumb(canvas: HTMLCanvasElement, thumbs: Thumbs, head: number, theme: Shade): void {
  const { rows, columns, data } = thumbs;
  const pixels = new ImageData(columns, rows);
  const colours = table("sequential", theme);
  for (let cell = 0; cell < rows * columns; cell++) {
    const step = data[head * rows * columns + cell] * 4;
    pixels.data.set(colours.subarray(step, step + 4), cell * 4);
  }
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d")!.putImageData(pixels, 0, 0);
}

/** The same as an address that an image can show. */
export function thumbAddress(thumbs: Thumbs, head: number, theme: Shade): string {
  const canvas = document.createElement("canvas");
  paintThumb(canvas, thumbs, head, theme);
  return canvas.toDataURL();
}
