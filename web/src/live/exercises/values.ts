/** Values of RASP programs, as Python has them: true is 1, pairs are lists, and what cannot be compared is no answer. */

export type Value = number | boolean | string | null | Value[];
export type Given = Exclude<Value, null>;

/** What Python would raise an error for. */
export class Unfit extends Error {}

export function numberOf(value: Given): number {
  if (typeof value === "number" || typeof value === "boolean") return Number(value);
  throw new Unfit();
}

function isNumber(value: Value): value is number | boolean {
  return typeof value === "number" || typeof value === "boolean";
}

export function equal(one: Value, other: Value): boolean {
  if (isNumber(one) && isNumber(other)) return Number(one) === Number(other);
  if (Array.isArray(one) && Array.isArray(other))
    return one.length === other.length && one.every((value, at) => equal(value, other[at]));
  return one === other;
}

export function less(one: Given, other: Given): boolean {
  if (isNumber(one) && isNumber(other)) return Number(one) < Number(other);
  if (typeof one === "string" && typeof other === "string") return one < other;
  if (!Array.isArray(one) || !Array.isArray(other)) throw new Unfit();
  const at = one.findIndex((value, place) => place >= other.length || !equal(value, other[place]));
  if (at < 0) return one.length < other.length;
  return at < other.length && less(one[at] as Given, other[at] as Given);
}

export function truth(value: Given): boolean {
  return Array.isArray(value) ? value.length > 0 : Boolean(value);
}

export function plus(one: Given, other: Given): Given {
  if (typeof one === "string" && typeof other === "string") return one + other;
  if (Array.isArray(one) && Array.isArray(other)) return [...one, ...other];
  return numberOf(one) + numberOf(other);
}

export function twice(value: Given): Given {
  return isNumber(value) ? 2 * Number(value) : plus(value, value);
}

/** The remainder by a number that is not negative, which is not negative either. */
export function remainder(one: Given, other: number): number {
  return ((numberOf(one) % other) + other) % other;
}

export function float(value: Given): number {
  if (typeof value === "string" && /^\d+$/.test(value)) return Number(value);
  return numberOf(value);
}

/** Whether an answer is what was expected; numbers may be off by rounding. */
export function fits(expected: Value, came: Value): boolean {
  if (isNumber(expected) && isNumber(came))
    return Math.abs(Number(expected) - Number(came)) <= 1e-6 * Math.max(1, Math.abs(Number(expected)));
  return equal(expected, came);
}

export function fitsRow(expected: readonly Value[], came: readonly Value[]): boolean {
  return expected.length === came.length && expected.every((value, at) => fits(value, came[at]));
}

export function showRow(row: readonly Value[], show = showValue): string {
  return row.map(show).join(" ");
}

export function showValue(value: Value): string {
  if (value === null) return "–";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  if (typeof value === "string") return value.slice(0, 80);
  const words = value.length > 0 && value.every((one) => typeof one === "string");
  return words ? `[${value.map((one) => quote(one)).join(", ")}]`.slice(0, 80) : `${value.length} results`;
}

/** A value whose kind is seen: the token '0' is not the number 0. */
export function quote(value: Value): string {
  return typeof value === "string" ? `'${value}'` : showValue(value);
}
