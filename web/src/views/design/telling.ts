/** Numbers of a design in few letters. */

import { local } from "../../lib/local";

/** At most three letters and a sign: 1, .33, −.5, 12, 1e3. */
export function brief(value: number): string {
  const size = Math.abs(value);
  if (size < 0.005) return "0";
  const text = size >= 999.5 ? size.toExponential(0).replace("e+", "e") : small(size);
  return local((value < 0 ? "−" : "") + text);
}

/** Three digits, without zeros that say nothing: 10, 0.25, −∞. */
export function few(value: number): string {
  return Number.isFinite(value)
    ? local(String(Number(value.toPrecision(3))).replace("-", "−"))
    : value > 0
      ? "∞"
      : "−∞";
}

/** What a scale is, in words: none is enough where another key scores as high. */
export function scaleWords(scale: number): string {
  return Number.isFinite(scale) ? local(scale.toFixed(scale < 10 ? 2 : 1)) : "none";
}

/** A share, told by what is missing where it is near 1, and never higher than it is: 0.9995, not 1.00. */
export function shareWords(share: number): string {
  if (share >= 1) return "1";
  if (share > 1 - 1e-6) return `1 − ${(1 - share).toExponential(0).replace("e-", "e−")}`;
  const digits = Math.max(3, Math.ceil(-Math.log10(1 - share)) + 1);
  return local((Math.floor(share * 10 ** digits + 1e-6) / 10 ** digits).toFixed(digits));
}

function small(size: number): string {
  if (size >= 9.995) return String(Math.round(size));
  const text = String(Number(size.toFixed(size < 1 ? 2 : 1)));
  return text.replace(/^0\./, ".");
}
