/** The arithmetic of one cell, as it is written out: what each number was made of, for every kind of weighting. */

import { local } from "../../lib/local";
import type { Arithmetic, Cell, WeightingKind } from "../../lib/source";
import { shown } from "../../lib/words";
import { t } from "../../text";
import { spoken } from "../../text/server";

/** Four figures that count, whatever the size: 14.20, 0.01235, 3.403e−4; null is −∞. */
export function figures(value: number | null | undefined, count = 4): string {
  if (value === null || value === undefined || value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e6 ? plainly(value, size, count) : value.toExponential(count - 1);
  return local(text.replaceAll("-", "−").replace("e+", "e"));
}

/** The numbers of a calculation, each with as many figures as it takes that what comes out of them as they are written
 * is the result as it is written: "1.0002 ÷ 1.0004 = 0.9998", not "1.000 ÷ 1.000". */
export function worked(
  numbers: readonly (number | null | undefined)[],
  work: (...numbers: number[]) => number,
  write: (value: number | null | undefined, count?: number) => string = figures,
  least = 4,
): string[] {
  const result = write(work(...numbers.map((one) => one ?? -Infinity)), least);
  for (let count = least; count < MOST_FIGURES; count++) {
    const written = numbers.map((one) => write(one, count));
    if (write(work(...written.map(readFigures)), least) === result) return written;
  }
  return numbers.map((one) => write(one, MOST_FIGURES));
}

const MOST_FIGURES = 8;

function readFigures(text: string): number {
  return text === "−∞" ? -Infinity : Number(text.replaceAll("−", "-").replace(",", "."));
}

/** Of a vector whose numbers have names, those that are not 0, most of them being so: `tokens:a 1`, `indices:3 1`. */
export function presentIn(vector: ArrayLike<number>, labels: readonly string[]): string[] {
  return Array.from(vector).flatMap((value, index) =>
    Math.abs(value) > 1e-6 ? [`${labels[index] ?? index} ${figures(value, 3)}`] : [],
  );
}

function plainly(value: number, size: number, count: number): string {
  return value.toFixed(Math.max(0, count - 1 - Math.floor(Math.log10(size))));
}

/** A share of 1 in little room: three decimals, and an exponent where those would say 0. */
export function briefly(weight: number): string {
  return weight !== 0 && Math.abs(weight) < 5e-4 ? figures(weight, 2) : shown(weight, 3);
}

/** What a score is multiplied by, as it is said: "÷ √64 = ÷ 8". `by` stands between the score and its result, "" if
 * nothing is done; `plain` is the same as one number, where that says more. `reason` is the server's: why a scale is what
 * it is, where it is not 1/√d_head. */
export function scaleWords(scale: number, width: number, reason: string) {
  if (scale === 1) return { by: "", plain: "", why: t.steps.noScale };
  if (Math.abs(scale * Math.sqrt(width) - 1) < 1e-5) {
    return { by: `÷ √${width}`, plain: `÷ ${short(Math.sqrt(width))}`, why: t.steps.scaleWhy };
  }
  return { by: `× ${short(scale)}`, plain: "", why: spoken(reason) };
}

function short(value: number): string {
  return Number.isInteger(value) ? String(value) : shown(value);
}

/** Whether the products are those of the query's and the key's own numbers, or of what was made of them first. */
export function plainProducts(cell: Pick<Cell, "query" | "key" | "products">): boolean {
  const { query, key, products } = cell;
  if (products.length !== query.length) return false;
  return products.every((product, index) => near(product, query[index] * key[index]));
}

/** What a query or key is called in a cell that holds it as it meets the other: mapped or brought to length 1 first. */
export function preparedName(
  name: "query" | "key",
  cell: Pick<Cell, "query">,
  own: ArrayLike<number> | undefined,
  { prepared }: Pick<Arithmetic, "prepared">,
): string {
  const same = own?.length === cell.query.length && cell.query.every((value, index) => near(value, own[index]));
  return same || own === undefined ? name : prepared.replace("{}", name);
}

/** How the score is called and made. */
export function scoreFormula(
  cell: Pick<Cell, "query" | "key" | "products">,
  own: ArrayLike<number> | undefined,
  arithmetic: Pick<Arithmetic, "prepared" | "formula">,
): string {
  if (!plainProducts(cell)) return spoken(arithmetic.formula);
  return `${preparedName("query", cell, own, arithmetic)} · ${preparedName("key", cell, own, arithmetic)}`;
}

/** Every pair of a vector's numbers that a position turns by an angle: what came in, and what came out. */
export function turnedPairs(before: ArrayLike<number>, pairs: readonly [number, number][], angles: ArrayLike<number>) {
  return pairs.map(([i, j], pair) => {
    const [a, b, cos, sin] = [before[i], before[j], Math.cos(angles[pair]), Math.sin(angles[pair])];
    return {
      label: `${i}, ${j}`,
      angle: angles[pair],
      before: [a, b],
      after: [a * cos - b * sin, a * sin + b * cos],
    };
  });
}

/** An angle in degrees, from −180 to 180. */
export function degrees(angle: number): string {
  return `${figures((angle * 180) / Math.PI, 3)}°`;
}

/** What softmax divides its differences by: 1, unless it has a temperature of its own. */
export function temperatureOf(cell: Pick<Cell, "masked" | "highest" | "exponential">): number {
  const { masked, highest, exponential } = cell;
  if (masked === null || highest === null || exponential === null || exponential <= 0) return 1;
  const difference = masked - highest;
  if (Math.abs(difference) < 1e-6 || near(Math.exp(difference), exponential)) return 1;
  const temperature = difference / Math.log(exponential);
  return Number.isFinite(temperature) && temperature > 0 ? temperature : 1;
}

/** How a weight comes of a masked score where each row has one number of its own: sparsemax's τ, sigmoid's offset. */
export function rowRule(
  weighting: string,
  masked: readonly (number | null)[],
  weight: ArrayLike<number>,
  key: number,
): string | null {
  const score = masked[key];
  const best = Array.from(weight).reduce((most, one, at) => (one > weight[most] ? at : most), 0);
  const highest = masked[best];
  if (score === null || highest === null || weight[best] === 0) return null;
  if (weighting === "Sparsemax") {
    const [written, threshold] = worked([score, highest - weight[best]], (one, other) => Math.max(one - other, 0));
    return t.steps.sparsemaxRule(written, threshold);
  }
  if (weighting !== "Sigmoid" || weight[best] >= 1) return null;
  const offset = Math.log(weight[best] / (1 - weight[best])) - highest;
  const allowed = masked.filter((one) => one !== null).length;
  const [written, by] = worked([score, offset], (one, other) => 1 / (1 + Math.exp(-one - other)));
  return t.steps.sigmoidRule(written, by, near(offset, -Math.log(allowed)) ? allowed : null);
}

/** Every key's amount in a row, what the weights are shares of: e^(masked − highest) of softmax, φ(q)·φ(k) of a kernel;
 * null where a weighting has no such thing. */
export function amounts(
  kind: WeightingKind,
  masked: ArrayLike<number | null>,
  weight: ArrayLike<number>,
  temperature = 1,
) {
  const finite = Array.from(masked).filter((value): value is number => value !== null);
  const highest = finite.reduce((most, value) => Math.max(most, value), -Infinity);
  return Array.from(weight, (share, key) => ({
    key,
    masked: masked[key],
    amount: amountOf(kind, masked[key], highest, temperature),
    weight: share,
  }));
}

function amountOf(kind: WeightingKind, masked: number | null, highest: number, temperature: number): number | null {
  if (kind === "kernelized") return masked;
  if (kind !== "softmax") return null;
  return masked === null ? 0 : Math.exp((masked - highest) / temperature);
}

/** weight · value of every key in one dimension; they sum to the context's number there. */
export function termsOf(weight: ArrayLike<number>, values: { columns: number; data: Float32Array }, dimension: number) {
  return Array.from(weight, (share, key) => {
    const value = values.data[key * values.columns + dimension];
    return { key, weight: share, value, product: share * value };
  });
}

/** The sum so far, when of each key's weighted value this share has arrived. */
export function gathered(
  weight: ArrayLike<number>,
  values: { columns: number; data: Float32Array },
  arrived: (key: number) => number,
): Float32Array {
  const sum = new Float32Array(values.columns);
  for (let key = 0; key < weight.length; key++) {
    const part = weight[key] * arrived(key);
    if (part === 0) continue;
    for (let index = 0; index < values.columns; index++) sum[index] += part * values.data[key * values.columns + index];
  }
  return sum;
}

function near(a: number, b: number): boolean {
  return Math.abs(a - b) <= 1e-4 * Math.max(1, Math.abs(a), Math.abs(b));
}
