/** Text on a shade: black or white, whichever reads better. One of them always has a contrast of 4.5 or more. */

/** The luminance of a ground from which both are equally far. */
const EVEN = 0.179;

/** `shade` as d3 writes it: rgb(r, g, b). */
export function inkOn(shade: string): "black" | "white" {
  let ink = known.get(shade);
  if (ink === undefined) known.set(shade, (ink = luminance(shade) > EVEN ? "black" : "white"));
  return ink;
}

/** There are as many shades as colours in the scales, and each is asked for with every cell of a table. */
const known = new Map<string, "black" | "white">();

/** The relative luminance, as contrast is reckoned with on pages. */
export function luminance(shade: string): number {
  const [red, green, blue] = (shade.match(/[\d.]+/g) ?? ["0", "0", "0"]).map((part) => linear(Number(part) / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function linear(share: number): number {
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}
