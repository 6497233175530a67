/** Arithmetic on float32 matrices, row by row. Sums are made in double precision, as JavaScript has no other. */

import type { Matrix } from "../lib/source";
import type { Activation } from "./plan";

/** A tensor of weights. */
export interface Tensor {
  shape: number[];
  data: Float32Array;
}

/** Vectors of each head: [head][row][column]. */
export interface HeadVectors {
  heads: number;
  rows: number;
  columns: number;
  data: Float32Array;
}

export function matrix(rows: number, columns: number): Matrix {
  return { rows, columns, data: new Float32Array(rows * columns) };
}

export function rowOf({ data, columns }: Matrix, row: number): Float32Array {
  return data.subarray(row * columns, (row + 1) * columns);
}

/** x · weightᵀ + bias. The weight has a row for each output; four rows of x and two of the weight go together. */
export function linear(x: Matrix, weight: Tensor, bias: Tensor | null): Matrix {
  const [outputs, inputs] = weight.shape;
  const made = matrix(x.rows, outputs);
  const [a, w, c] = [x.data, weight.data, made.data];
  let row = 0;
  for (; row + 4 <= x.rows; row += 4) fourRows(a, w, c, row, inputs, outputs);
  for (; row < x.rows; row++) oneRow(a, w, c, row, inputs, outputs);
  if (bias !== null) addToRows(made, bias.data);
  return made;
}

function fourRows(
  a: Float32Array,
  w: Float32Array,
  c: Float32Array,
  row: number,
  inputs: number,
  outputs: number,
): void {
  const [a0, a1, a2, a3] = [0, 1, 2, 3].map((more) => (row + more) * inputs);
  const [c0, c1, c2, c3] = [0, 1, 2, 3].map((more) => (row + more) * outputs);
  let out = 0;
  for (; out + 2 <= outputs; out += 2) {
    const w0 = out * inputs;
    const w1 = w0 + inputs;
    let s00 = 0, s01 = 0, s10 = 0, s11 = 0, s20 = 0, s21 = 0, s30 = 0, s31 = 0; // prettier-ignore
    for (let k = 0; k < inputs; k++) {
      const u = w[w0 + k];
      const v = w[w1 + k];
      const x0 = a[a0 + k];
      const x1 = a[a1 + k];
      const x2 = a[a2 + k];
      const x3 = a[a3 + k];
      s00 += x0 * u;
      s01 += x0 * v;
      s10 += x1 * u;
      s11 += x1 * v;
      s20 += x2 * u;
      s21 += x2 * v;
      s30 += x3 * u;
      s31 += x3 * v;
    }
    c[c0 + out] = s00;
    c[c0 + out + 1] = s01;
    c[c1 + out] = s10;
    c[c1 + out + 1] = s11;
    c[c2 + out] = s20;
    c[c2 + out + 1] = s21;
    c[c3 + out] = s30;
    c[c3 + out + 1] = s31;
  }
  if (out < outputs) for (let more = 0; more < 4; more++) oneCell(a, w, c, row + more, out, inputs, outputs);
}

function oneRow(a: Float32Array, w: Float32Array, c: Float32Array, row: number, inputs: number, outputs: number): void {
  const first = row * inputs;
  let out = 0;
  for (; out + 4 <= outputs; out += 4) {
    const w0 = out * inputs;
    const w1 = w0 + inputs;
    const w2 = w1 + inputs;
    const w3 = w2 + inputs;
    let s0 = 0, s1 = 0, s2 = 0, s3 = 0; // prettier-ignore
    for (let k = 0; k < inputs; k++) {
      const x = a[first + k];
      s0 += x * w[w0 + k];
      s1 += x * w[w1 + k];
      s2 += x * w[w2 + k];
      s3 += x * w[w3 + k];
    }
    const place = row * outputs + out;
    c[place] = s0;
    c[place + 1] = s1;
    c[place + 2] = s2;
    c[place + 3] = s3;
  }
  for (; out < outputs; out++) oneCell(a, w, c, row, out, inputs, outputs);
}

function oneCell(
  a: Float32Array,
  w: Float32Array,
  c: Float32Array,
  row: number,
  out: number,
  inputs: number,
  outputs: number,
): void {
  let sum = 0;
  for (let k = 0; k < inputs; k++) sum += a[row * inputs + k] * w[out * inputs + k];
  c[row * outputs + out] = sum;
}

function addToRows(x: Matrix, bias: Float32Array): void {
  for (let row = 0; row < x.rows; row++)
    for (let column = 0; column < x.columns; column++) x.data[row * x.columns + column] += bias[column];
}

export function add(a: Matrix, b: Matrix): Matrix {
  const made = matrix(a.rows, a.columns);
  for (let place = 0; place < made.data.length; place++) made.data[place] = a.data[place] + b.data[place];
  return made;
}

export function times(a: Matrix, b: Matrix): Matrix {
  const made = matrix(a.rows, a.columns);
  for (let place = 0; place < made.data.length; place++) made.data[place] = a.data[place] * b.data[place];
  return made;
}

export function scaled(a: Matrix, factor: number): Matrix {
  return factor === 1 ? a : mapped(a, (value) => value * factor);
}

export function mapped(a: Matrix, by: (value: number) => number): Matrix {
  const made = matrix(a.rows, a.columns);
  for (let place = 0; place < made.data.length; place++) made.data[place] = by(a.data[place]);
  return made;
}

/** A norm with its values: what its parts are called is what clearhead/model/norms.py calls them. */
export interface Norm {
  kind: "layer" | "rms";
  epsilon: number;
  gamma: Float32Array;
  beta: Float32Array | null;
}

/** Every value of a norm, by name: `out` is what it returns. */
export interface NormSteps {
  mean?: Matrix;
  variance?: Matrix;
  mean_square?: Matrix;
  normalized: Matrix;
  out: Matrix;
}

export function normSteps(norm: Norm, x: Matrix): NormSteps {
  const [first, second] = [matrix(x.rows, 1), matrix(x.rows, 1)];
  const [normalized, out] = [matrix(x.rows, x.columns), matrix(x.rows, x.columns)];
  const n = x.columns;
  for (let row = 0; row < x.rows; row++) {
    const start = row * n;
    let mean = 0;
    if (norm.kind === "layer") for (let k = 0; k < n; k++) mean += x.data[start + k] / n;
    let square = 0;
    for (let k = 0; k < n; k++) square += (x.data[start + k] - mean) ** 2 / n;
    const factor = 1 / Math.sqrt(square + norm.epsilon);
    for (let k = 0; k < n; k++) {
      const value = (x.data[start + k] - mean) * factor;
      normalized.data[start + k] = value;
      out.data[start + k] = value * norm.gamma[k] + (norm.beta === null ? 0 : norm.beta[k]);
    }
    first.data[row] = mean;
    second.data[row] = square;
  }
  return norm.kind === "layer"
    ? { mean: first, variance: second, normalized, out }
    : { mean_square: second, normalized, out };
}

export function activate(kind: Activation, x: Matrix): Matrix {
  switch (kind) {
    case "relu":
      return mapped(x, (value) => Math.max(0, value));
    case "silu":
      return mapped(x, (value) => value / (1 + Math.exp(-value)));
    case "gelu exact":
      return mapped(x, (value) => 0.5 * value * (1 + erf(value / Math.SQRT2)));
    case "gelu tanh":
      return mapped(x, (value) => 0.5 * value * (1 + Math.tanh(ROOT * (value + 0.044715 * value ** 3))));
  }
}

const ROOT = Math.sqrt(2 / Math.PI);

/** The error function: its Taylor series near 0, its continued fraction far from it; exact to some 1e-14. */
export function erf(x: number): number {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  const square = x * x;
  if (size < 2.5) {
    let [term, sum] = [x, x];
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
      term *= -square / n;
      sum += term / (2 * n + 1);
    }
    return (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = size;
  for (let n = 60; n >= 1; n--) fraction = size + n / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-square) / (fraction * Math.sqrt(Math.PI)));
}

/** The logarithms of the softmax of a row. */
export function logSoftmax(row: ArrayLike<number>): Float64Array {
  let highest = -Infinity;
  for (let k = 0; k < row.length; k++) if (row[k] > highest) highest = row[k];
  let total = 0;
  for (let k = 0; k < row.length; k++) total += Math.exp(row[k] - highest);
  const less = highest + Math.log(total);
  return Float64Array.from(row, (value) => value - less);
}

/** The places of the `count` largest values, the largest first; of equal ones the first. */
export function largest(values: ArrayLike<number>, count: number): number[] {
  const found: number[] = [];
  for (let place = 0; place < values.length; place++) {
    const value = values[place];
    if (found.length === count && !(value > values[found[count - 1]])) continue;
    let at = found.length;
    while (at > 0 && value > values[found[at - 1]]) at--;
    found.splice(at, 0, place);
    if (found.length > count) found.pop();
  }
  return found;
}

/** A mapped matrix cut into heads: [row][head · d] becomes [head][row][d]. */
export function splitHeads(x: Matrix, heads: number): HeadVectors {
  const columns = x.columns / heads;
  const made = { heads, rows: x.rows, columns, data: new Float32Array(x.data.length) };
  for (let head = 0; head < heads; head++)
    for (let row = 0; row < x.rows; row++) {
      const from = row * x.columns + head * columns;
      made.data.set(x.data.subarray(from, from + columns), (head * x.rows + row) * columns);
    }
  return made;
}

export function joinHeads(x: HeadVectors): Matrix {
  const made = matrix(x.rows, x.heads * x.columns);
  for (let head = 0; head < x.heads; head++)
    for (let row = 0; row < x.rows; row++) {
      const from = (head * x.rows + row) * x.columns;
      made.data.set(x.data.subarray(from, from + x.columns), row * made.columns + head * x.columns);
    }
  return made;
}

export function headVector(x: HeadVectors, head: number, row: number): Float32Array {
  const from = (head * x.rows + row) * x.columns;
  return x.data.subarray(from, from + x.columns);
}
