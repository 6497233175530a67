/** The weights of a page: base64 of zlib's format into float32 tensors. float16 becomes float32 when it is read. */

import { inflate } from "../lib/inflate";
import type { Live } from "./plan";
import type { Tensor } from "./tensor";

export async function unpackWeights(text: string, places: Live["tensors"]): Promise<Map<string, Tensor>> {
  const bytes = await inflate(text);
  const found = new Map<string, Tensor>();
  for (const [name, { shape, dtype, offset }] of Object.entries(places)) {
    const size = shape.reduce((product, one) => product * one, 1);
    const data =
      dtype === "float32"
        ? new Float32Array(bytes.buffer, offset, size)
        : fromHalf(new Uint16Array(bytes.buffer, offset, size));
    found.set(name, { shape, data });
  }
  return found;
}

/** float16 as float32: a table of all 65,536 would cost more than these few steps a number. */
export function fromHalf(halves: Uint16Array): Float32Array {
  const made = new Float32Array(halves.length);
  const bits = new Uint32Array(made.buffer);
  for (let place = 0; place < halves.length; place++) {
    const half = halves[place];
    const [sign, exponent, rest] = [(half & 0x8000) << 16, (half >> 10) & 31, half & 0x3ff];
    if (exponent === 0) made[place] = (sign ? -1 : 1) * rest * 2 ** -24;
    else bits[place] = sign | ((exponent === 31 ? 255 : exponent + 112) << 23) | (rest << 13);
  }
  return made;
}
