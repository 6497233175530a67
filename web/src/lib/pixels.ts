/** Return a canvas of pixels: in each number red, green, blue and opacity, the first the lowest byte. */
export function canvasOf(pixels: Uint32Array<ArrayBuffer>, columns: number): HTMLCanvasElement {
  const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: pixels.length / columns });
  canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns), 0, 0);
  return canvas;
}
