/** Attention row by row: clearhead/attention/reference.py in TypeScript. Positions count from 0 on both sides. */

import { length, weigh } from "../lib/arithmetic";
import type { EditJson } from "../lib/source";
import { editRow, INSIDE, isSwap } from "./changes";
import type { AttentionPlan, MaskPlan, PositionPlan, SimilarityPlan, WeightingPlan } from "./plan";
import type { HeadVectors, Tensor } from "./tensor";

export type Allows = (query: number, key: number) => boolean;

export function compileMask(mask: MaskPlan): Allows | null {
  const parts = (mask.parts ?? []).map(compileMask);
  const each = parts.map((part) => part ?? ((): boolean => true));
  switch (mask.kind) {
    case "everything":
      return null;
    case "causal":
      return (query, key) => key <= query;
    case "window":
      return (query, key) => query - key <= mask.left! && query - key >= -mask.right!;
    case "both":
      return (query, key) => each.every((allows) => allows(query, key));
    case "either":
      return (query, key) => each.some((allows) => allows(query, key));
    case "not":
      return (query, key) => !each[0](query, key);
  }
}

/** One row of attention, step by step; where a query may not attend `masked` is the weighting's `blocked`. */
export interface Steps {
  allowed: Float64Array;
  score: Float64Array;
  scaled: Float64Array;
  masked: Float64Array;
  weight: Float64Array;
}

/** How a layer's rows are made: its parts, with a swapped weighting in place. */
export class Rows {
  readonly similarity: SimilarityPlan;
  readonly weighting: WeightingPlan;
  readonly position: PositionPlan;
  readonly scale: number[];
  /** The weights are plain softmax and nothing inside is edited: the short way is enough. */
  private readonly plain: boolean;
  private readonly allows: Allows | null;

  constructor(
    readonly plan: AttentionPlan,
    readonly tensors: Map<string, Tensor>,
    private readonly edits: EditJson[] = [],
    swapped: (WeightingPlan & { similarity: SimilarityPlan }) | null = null,
  ) {
    const forms = [swapped?.form, plan.weighting.form];
    const takesOver = swapped !== null && forms.includes("kernelized");
    this.similarity = takesOver ? swapped.similarity : plan.similarity;
    this.weighting = swapped ?? plan.weighting;
    this.position = plan.position;
    const scale = this.similarity.scale ?? [1 / Math.sqrt(plan.d_head)];
    this.scale = Array.from({ length: plan.n_heads }, (_, head) => scale[scale.length === 1 ? 0 : head]);
    this.allows = compileMask(plan.mask);
    this.plain =
      this.weighting.arithmetic.kind === "softmax" &&
      !edits.some((edit) => !isSwap(edit) && INSIDE.includes(edit.step));
  }

  /** Queries or keys as they are compared, one vector each, for a head. */
  prepare(role: "query" | "key", head: number, vector: Float32Array): Float32Array {
    switch (this.similarity.kind) {
      case "dot":
        return vector;
      case "cosine":
        return unit(vector);
      case "additive":
        return mapByHead(vector, this.tensors.get(this.similarity[role]!)!, head);
      default:
        return this.features(vector);
    }
  }

  private features(vector: Float32Array): Float32Array {
    switch (this.similarity.features) {
      case "elu":
        return vector.map((x) => Math.max(0, x) + Math.exp(Math.min(0, x)));
      case "relu":
        return vector.map((x) => Math.max(0, x));
      case "softmax":
        return Float32Array.from(weigh({ kind: "softmax", temperature: 1 }, vector).weight);
      default:
        return this.random(vector);
    }
  }

  /** Random features, as logarithms where the similarity takes them so. */
  private random(vector: Float32Array): Float32Array {
    const projection = this.tensors.get(this.similarity.projection!)!;
    const [count, width] = projection.shape;
    const root = Math.sqrt(this.similarity.factor!);
    let half = 0;
    for (const x of vector) half += (x * root) ** 2 / 2;
    return Float32Array.from({ length: count }, (_, row) => {
      let sum = 0;
      for (let k = 0; k < width; k++) sum += vector[k] * root * projection.data[row * width + k];
      const log = sum - half - Math.log(count) / 2;
      return this.similarity.kind === "features" ? Math.exp(log) : log;
    });
  }

  /** The weights of a query at a position on these keys, as short as can be. */
  weights(head: number, query: Float32Array, keys: Float32Array[], position: number): ArrayLike<number> {
    if (!this.plain) return this.steps(head, query, keys, position).weight;
    const row = new Float64Array(keys.length);
    const { temperature } = this.weighting;
    let highest = -Infinity;
    for (let key = 0; key < keys.length; key++) {
      if (this.allows !== null && !this.allows(position, key)) {
        row[key] = -Infinity;
        continue;
      }
      const score = this.score(head, query, keys[key]) * this.scale[head] + this.bias(head, position, key);
      row[key] = score;
      if (score > highest) highest = score;
    }
    if (highest === -Infinity) return row.fill(0);
    let total = 0;
    for (let key = 0; key < row.length; key++) total += row[key] = Math.exp((row[key] - highest) / temperature);
    for (let key = 0; key < row.length; key++) row[key] /= total;
    return row;
  }

  /** 1 for each of `n` keys that a query at a position may attend to, 0 for the others. */
  allowed(head: number, position: number, n: number): Float64Array {
    const { allows } = this;
    const found = Float64Array.from({ length: n }, (_, key) => (allows === null || allows(position, key) ? 1 : 0));
    editRow(this.edits, "allowed", head, position, found);
    return found;
  }

  steps(head: number, query: Float32Array, keys: Float32Array[], position: number): Steps {
    const n = keys.length;
    const [score, scaled, masked] = [0, 1, 2].map(() => new Float64Array(n));
    const allowed = this.allowed(head, position, n);
    for (let key = 0; key < n; key++) score[key] = this.score(head, query, keys[key]);
    editRow(this.edits, "score", head, position, score);
    for (let key = 0; key < n; key++) scaled[key] = score[key] * this.scale[head];
    editRow(this.edits, "scaled", head, position, scaled);
    const blocked = this.weighting.blocked ?? -Infinity;
    for (let key = 0; key < n; key++)
      masked[key] = allowed[key] ? scaled[key] + this.bias(head, position, key) : blocked;
    editRow(this.edits, "masked", head, position, masked);
    const some = allowed.includes(1) || this.weighting.arithmetic.kind === "kernelized";
    const weight = Float64Array.from(some ? weigh(this.weighting.arithmetic, masked).weight : new Float64Array(n));
    editRow(this.edits, "weight", head, position, weight);
    return { allowed, score, scaled, masked, weight };
  }

  private score(head: number, query: Float32Array, key: Float32Array): number {
    const { kind } = this.similarity;
    let sum = 0;
    if (kind === "additive") {
      const { data, shape } = this.tensors.get(this.similarity.out!)!;
      const out = head * shape[1];
      for (let k = 0; k < query.length; k++) sum += Math.tanh(query[k] + key[k]) * data[out + k];
      return sum;
    }
    if (kind === "log features") return logProduct(query, key);
    for (let k = 0; k < query.length; k++) sum += query[k] * key[k];
    return sum;
  }

  /** What the position adds to a scaled score. */
  bias(head: number, query: number, key: number): number {
    switch (this.position.kind) {
      case "alibi":
        return -slope(head, this.plan.n_heads) * Math.abs(query - key);
      case "t5":
        return this.tensors.get(this.position.table!)!.data[
          bucket(this.position, key - query) * this.plan.n_heads + head
        ];
      default:
        return 0;
    }
  }

  /** Turns vectors by their positions; the same ones where positions do not turn. */
  turn(vectors: HeadVectors, first = 0): HeadVectors {
    if (this.position.kind !== "rotary") return vectors;
    const made = { ...vectors, data: vectors.data.slice() };
    const { pairs, frequency } = this.position as { pairs: [number, number][]; frequency: number[] };
    for (let row = 0; row < vectors.rows; row++)
      pairs.forEach(([i, j], pair) => {
        const angle = (first + row) * frequency[pair];
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        for (let head = 0; head < vectors.heads; head++) {
          const at = (head * vectors.rows + row) * vectors.columns;
          const [a, b] = [vectors.data[at + i], vectors.data[at + j]];
          made.data[at + i] = a * cos - b * sin;
          made.data[at + j] = a * sin + b * cos;
        }
      });
    return made;
  }

  /** The angles of each pair at a position, between −π and π. */
  angles(position: number): number[] {
    return (this.position.frequency ?? []).map((one) => Math.atan2(Math.sin(position * one), Math.cos(position * one)));
  }
}

/** The weighted sum of the values, into `out`. */
export function mixInto(out: Float32Array, weight: ArrayLike<number>, values: Float32Array[]): void {
  const sum = new Float64Array(out.length);
  for (let key = 0; key < values.length; key++) {
    const [share, value] = [weight[key], values[key]];
    if (share === 0) continue;
    for (let k = 0; k < sum.length; k++) sum[k] += share * value[k];
  }
  out.set(sum);
}

/** A vector of length 1; zero stays zero. Divided by its greatest entry first, so that no square overflows. */
function unit(vector: Float32Array): Float32Array {
  const greatest = vector.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  if (greatest === 0) return vector;
  const small = Array.from(vector, (x) => x / greatest);
  const long = length(small);
  return Float32Array.from(small, (x) => x / long);
}

function mapByHead(vector: Float32Array, map: Tensor, head: number): Float32Array {
  const [, inputs, outputs] = map.shape;
  const start = head * inputs * outputs;
  return Float32Array.from({ length: outputs }, (_, out) => {
    let sum = 0;
    for (let k = 0; k < inputs; k++) sum += vector[k] * map.data[start + k * outputs + out];
    return sum;
  });
}

/** log φ(q)·φ(k), from the logarithms of both. */
function logProduct(query: Float32Array, key: Float32Array): number {
  let highest = -Infinity;
  for (let k = 0; k < query.length; k++) highest = Math.max(highest, query[k] + key[k]);
  if (highest === -Infinity) return -Infinity;
  let total = 0;
  for (let k = 0; k < query.length; k++) total += Math.exp(query[k] + key[k] - highest);
  return highest + Math.log(total);
}

function slope(head: number, heads: number): number {
  const whole = 2 ** Math.floor(Math.log2(heads));
  const exponent = head < whole ? 8 * (head + 1) : 4 * (2 * (head - whole) + 1);
  return 2 ** (-exponent / whole);
}

function bucket({ buckets, reach, two_sided }: PositionPlan, ahead: number): number {
  const half = two_sided ? buckets! / 2 : buckets!;
  const side = two_sided && ahead > 0 ? half : 0;
  const distance = two_sided ? Math.abs(ahead) : Math.max(0, -ahead);
  const exact = Math.floor(half / 2);
  if (distance < exact) return side + distance;
  const growth = Math.fround(Math.log(Math.max(1, distance) / exact) / Math.log(reach! / exact)) * (half - exact);
  return side + Math.min(half - 1, exact + Math.trunc(Math.fround(growth)));
}
