/** The embedding map of a live page: every token's vector in a plane (PCA), and the nearest of one, as
 * clearhead/serve/embeddings.py has them. */

import { type EmbeddingMap, type Neighbour, type Neighbours, type SideName, SourceError } from "../lib/source";
import type { Model } from "./model";
import type { Task } from "./task";
import { largest, type Tensor } from "./tensor";
import type { Tokenizer } from "./tokenizer";

const OUTPUT = "output";
const NEAR = 10;

/** The tables with a vector for every token, each once: one that is shared has the name of the first. */
function tablesOf(model: Model): Map<string, string> {
  const found = new Map<string, string>();
  const add = (name: string, held: string): void => {
    if (![...found.values()].includes(held)) found.set(name, held);
  };
  for (const side of model.sides) add(`${side}.embedding`, model.side(side).embedding.table);
  const { output } = model.side(model.sides.at(-1)!);
  if (output?.kind === "vocabulary") add(OUTPUT, output.table);
  return found;
}

function tokenizerOf(task: Task, table: string): Tokenizer {
  return table === "encoder.embedding" ? task.reads : task.writes;
}

export function embeddingMap(model: Model, task: Task, wanted: string | null): EmbeddingMap {
  const tables = tablesOf(model);
  const name = wanted ?? [...tables.keys()][0];
  const table = tensorOf(model, tables, name);
  const { output } = model.side(model.sides.at(-1) as SideName);
  const read = output?.kind === "vocabulary" ? output.table : null;
  const [count, d_model] = table.shape;
  const { points, explained } = principalPlane(table.data, count, d_model);
  return {
    table: name,
    tables: [...tables].map(([one, held]) => ({ name: one, tied: one !== OUTPUT && held === read })),
    d_model,
    explained,
    points: points.map(([x, y]) => [rounded(x), rounded(y)]),
    tokens: tokenizerOf(task, name).names(Array.from({ length: count }, (_, id) => id)),
  };
}

export function neighboursOf(model: Model, task: Task, name: string, token: number): Neighbours {
  const tables = tablesOf(model);
  const table = tensorOf(model, tables, name);
  if (token >= table.shape[0]) throw new SourceError(`${name}: there is no token ${token}`);
  const tokenizer = tokenizerOf(task, name);
  const same = [...tables.keys()].filter(
    (one) => tokenizerOf(task, one) === tokenizer && tensorOf(model, tables, one).shape[0] === table.shape[0],
  );
  return {
    token,
    text: tokenizer.names([token])[0],
    tables: [name, ...same.filter((one) => one !== name)].map((one) =>
      nearest(tensorOf(model, tables, one), token, one),
    ),
  };

  function nearest({ data, shape }: Tensor, token: number, table: string): Neighbours["tables"][number] {
    const [count, width] = shape;
    const row = (id: number): Float32Array => data.subarray(id * width, (id + 1) * width);
    const lengths = Float64Array.from({ length: count }, (_, id) => Math.sqrt(dot(row(id), row(id))));
    const cosines = Float64Array.from(lengths, (long, id) =>
      id === token ? -2 : dot(row(id), row(token)) / (Math.max(long, 1e-12) * Math.max(lengths[token], 1e-12)),
    );
    const ids = largest(cosines, Math.min(NEAR, count - 1));
    const texts = tokenizer.names(ids);
    const near = ids.map((id, place): Neighbour => ({ id, text: texts[place], cosine: cosines[id] }));
    return { table, length: lengths[token], near };
  }
}

function tensorOf(model: Model, tables: Map<string, string>, name: string): Tensor {
  const held = tables.get(name);
  if (held === undefined)
    throw new SourceError(`table: expected one of ${[...tables.keys()].join(", ")}; came ${name}`);
  return model.tensor(held);
}

/** Vectors along the two directions in which they differ most, and the share of the variance along each.
 *
 * A direction's largest number is positive, so that the same table gives the same map. */
export function principalPlane(
  data: Float32Array,
  count: number,
  width: number,
): { points: [number, number][]; explained: [number, number] } {
  const mean = new Float64Array(width);
  for (let place = 0; place < data.length; place++) mean[place % width] += data[place] / count;
  const covariance = new Float64Array(width * width);
  const centred = new Float64Array(width);
  for (let row = 0; row < count; row++) {
    for (let k = 0; k < width; k++) centred[k] = data[row * width + k] - mean[k];
    for (let i = 0; i < width; i++) {
      const factor = centred[i];
      for (let j = 0; j <= i; j++) covariance[i * width + j] += factor * centred[j];
    }
  }
  for (let i = 0; i < width; i++) for (let j = 0; j < i; j++) covariance[j * width + i] = covariance[i * width + j];
  let total = 0;
  for (let i = 0; i < width; i++) total += covariance[i * width + i];
  const found = topTwo(covariance, width);
  const directions = found.map(({ vector }) => turned(vector));
  const along = (row: number, by: Float64Array | undefined): number => {
    let sum = 0;
    if (by !== undefined) for (let k = 0; k < width; k++) sum += (data[row * width + k] - mean[k]) * by[k];
    return sum;
  };
  const share = (place: number): number => (total > 0 ? Math.max(0, found[place]?.value ?? 0) / total : 0);
  return {
    points: Array.from({ length: count }, (_, row) => [along(row, directions[0]), along(row, directions[1])]),
    explained: [share(0), share(1)],
  };
}

/** With its largest number positive. */
function turned(vector: Float64Array): Float64Array {
  let most = 0;
  vector.forEach((value, place) => {
    if (Math.abs(value) > Math.abs(vector[most])) most = place;
  });
  return vector[most] < 0 ? vector.map((value) => -value) : vector;
}

const VECTORS = 8;
const ROUNDS = 500;
const STILL = 1e-13;
/** A vector so much shorter than the longest is what rounding has left. */
const NOTHING = 1e-11;

/** The two largest eigenvalues of a symmetric matrix with their vectors, by iterating a subspace of a few more. */
function topTwo(matrix: Float64Array, n: number): { value: number; vector: Float64Array }[] {
  const size = Math.min(VECTORS, n);
  let basis = orthonormal(
    Array.from({ length: size }, (_, one) => Float64Array.from({ length: n }, (_, k) => wave(one, k))),
  );
  let before: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const images = basis.map((vector) => product(matrix, vector));
    const small = Float64Array.from({ length: size * size }, (_, place) =>
      dot(basis[Math.floor(place / size)], images[place % size]),
    );
    const { values, vectors } = jacobi(small, size);
    basis = orthonormal(vectors.map((weights) => mixed(images, weights)));
    const moved = Math.max(...values.slice(0, 2).map((value, place) => Math.abs(value - (before[place] ?? Infinity))));
    before = values;
    if (moved <= STILL * Math.abs(values[0])) break;
  }
  return before.slice(0, 2).map((value, place) => ({ value, vector: basis[place] }));
}

/** Some numbers that no table is orthogonal to. */
function wave(one: number, k: number): number {
  return Math.sin((k + 1) * (one + 1) * 1.6180339887 + one);
}

function product(matrix: Float64Array, vector: Float64Array): Float64Array {
  const n = vector.length;
  const made = new Float64Array(n);
  for (let row = 0; row < n; row++) {
    let sum = 0;
    for (let k = 0; k < n; k++) sum += matrix[row * n + k] * vector[k];
    made[row] = sum;
  }
  return made;
}

function mixed(vectors: Float64Array[], weights: number[]): Float64Array {
  const made = new Float64Array(vectors[0].length);
  vectors.forEach((vector, one) => vector.forEach((value, k) => (made[k] += weights[one] * value)));
  return made;
}

/** The same space with vectors of length 1 at right angles; one that has nothing of its own stays 0. */
function orthonormal(vectors: Float64Array[]): Float64Array[] {
  const made: Float64Array[] = [];
  const longest = Math.sqrt(Math.max(...vectors.map((vector) => dot(vector, vector))));
  for (const vector of vectors) {
    const rest = vector.slice();
    for (let twice = 0; twice < 2; twice++)
      for (const one of made) {
        const along = dot(one, rest);
        for (let k = 0; k < rest.length; k++) rest[k] -= along * one[k];
      }
    const long = Math.sqrt(dot(rest, rest));
    made.push(rest.map((value) => (long > NOTHING * longest ? value / long : 0)));
  }
  return made;
}

/** All eigenvalues of a small symmetric matrix, the largest first, by turning pairs of its axes. */
function jacobi(given: Float64Array, n: number): { values: number[]; vectors: number[][] } {
  const a = given.slice();
  const v = Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j): number => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 40; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = 0; q < p; q++) off += a[p * n + q] ** 2;
    if (off < 1e-30 * dot(a, a)) break;
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        const apq = a[p * n + q];
        if (apq === 0) continue;
        const theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1);
        const s = t * c;
        for (let k = 0; k < n; k++) {
          const [kp, kq] = [a[k * n + p], a[k * n + q]];
          [a[k * n + p], a[k * n + q]] = [c * kp - s * kq, s * kp + c * kq];
        }
        for (let k = 0; k < n; k++) {
          const [pk, qk] = [a[p * n + k], a[q * n + k]];
          [a[p * n + k], a[q * n + k]] = [c * pk - s * qk, s * pk + c * qk];
        }
        for (let k = 0; k < n; k++) {
          const [kp, kq] = [v[k][p], v[k][q]];
          [v[k][p], v[k][q]] = [c * kp - s * kq, s * kp + c * kq];
        }
      }
  }
  const order = Array.from({ length: n }, (_, i) => i).sort((i, j) => a[j * n + j] - a[i * n + i]);
  return { values: order.map((i) => a[i * n + i]), vectors: order.map((i) => v.map((row) => row[i])) };
}

function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
  return sum;
}

function rounded(value: number): number {
  return Math.round(value * 1e6) / 1e6;
}
