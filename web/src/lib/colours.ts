/** Colours of roles and scales of numbers. Scales are monotone in lightness, so they read without colour too. */

import { interpolateRgbBasis } from "d3-interpolate";

import type { Role } from "./source";

/** As clearhead/colours.py has them: Okabe and Ito's, told apart by colour-blind readers too. */
export const ROLES: Record<Role, string> = {
  query: "#0087D7",
  key: "#E69F00",
  value: "#009E73",
  weight: "#D55E00",
  context: "#CC79A7",
};

/** Weights, differences of weights, and numbers of either sign that are no weights: orange is for weights alone. */
export type ScaleName = "sequential" | "diverging" | "signed";
export type Shade = "light" | "dark";

const STOPS: Record<ScaleName, Record<Shade, string[]>> = {
  sequential: {
    light: ["#ffffff", "#fdeedd", "#fbd3a8", "#f5a866", "#e57a26", "#bf5200", "#8b3400", "#561d00"],
    dark: ["#191b1e", "#33231a", "#5a3013", "#8a430c", "#bd5c0c", "#e6822e", "#f8b272", "#ffe6c7"],
  },
  diverging: {
    light: ["#00416b", "#0072b5", "#5fb0e3", "#c4e0f3", "#ffffff", "#fbd9b8", "#f0a05a", "#c65a08", "#6b2900"],
    dark: ["#a9dcff", "#4fb1ee", "#0f78b8", "#103f5e", "#191b1e", "#55300f", "#a8560f", "#ee9140", "#ffd9b0"],
  },
  signed: {
    light: ["#0b3d42", "#23727a", "#77b3b8", "#cde4e6", "#ffffff", "#ded7f5", "#a898e0", "#6350bb", "#2f2070"],
    dark: ["#b5e6ea", "#63b4bb", "#2b7b82", "#1b4247", "#191b1e", "#352c57", "#6555b0", "#a394ee", "#ded6ff"],
  },
};

const STEPS = 256;

type Bytes = Uint8ClampedArray<ArrayBuffer>;
/** Scales and their tables, made once: they are asked for with every cell and every small picture. */
const scales = new Map<string, (share: number) => string>();
const tables = new Map<string, Bytes>();

/** 256 colours as RGBA bytes, from the lowest number to the highest; to be read only. */
export function table(scale: ScaleName, shade: Shade): Bytes {
  const name = `${scale} ${shade}`;
  let bytes = tables.get(name);
  if (bytes !== undefined) return bytes;
  tables.set(name, (bytes = new Uint8ClampedArray(STEPS * 4)));
  for (let step = 0; step < STEPS; step++) {
    const [red, green, blue] = channels(shadeOf(step / (STEPS - 1), scale, shade));
    bytes.set([red, green, blue, 255], step * 4);
  }
  return bytes;
}

/** One colour of a scale, of a share between 0 and 1. */
export function shadeOf(share: number, scale: ScaleName, shade: Shade): string {
  const name = `${scale} ${shade}`;
  let colours = scales.get(name);
  if (colours === undefined) scales.set(name, (colours = interpolateRgbBasis(STOPS[scale][shade])));
  return colours(Math.min(1, Math.max(0, share)));
}

/** Where the colours of weights end: at 1, or for weights that are all small at 1, 2 or 5 of a smaller unit. */
export function topOf(highest: number): number {
  if (!(highest > 0) || highest > 0.5) return 1;
  const unit = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * unit).find((step) => step >= highest * (1 - 1e-6)) ?? 1;
}

/** Where a number lies between the ends of a domain, as one of the table's 256 steps. */
export function stepOf(value: number, low: number, high: number): number {
  if (!(high > low)) return 0;
  const share = (value - low) / (high - low);
  return Number.isNaN(share) ? 0 : Math.round(Math.min(1, Math.max(0, share)) * (STEPS - 1));
}

function channels(colour: string): number[] {
  return (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
}
