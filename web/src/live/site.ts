/** An attention of a trace: its vectors, and every step of any head and row, as clearhead/tracing/site.py has them. */

import { argmax, finite } from "../lib/arithmetic";
import { type Cell, type EditJson, type Matrix, type MatrixStep, type SideName, type SiteMeta } from "../lib/source";
import { Changes, isSwap } from "./changes";
import { mixInto, type Rows, type Steps } from "./attention";
import { type HeadVectors, headVector, matrix } from "./tensor";

export interface SiteVectors {
  query: HeadVectors;
  /** Keys and values have fewer heads where several query heads share them. */
  key: HeadVectors;
  value: HeadVectors;
  /** Queries and keys before rotary; null where positions do not turn. */
  projected: { query: HeadVectors; key: HeadVectors } | null;
}

export class Site {
  /** The contexts as the heads made them, and as they went on. */
  readonly made: HeadVectors;
  readonly context: HeadVectors;
  private readonly keys = new Map<number, Float32Array[]>();
  private readonly queries = new Map<number, Float32Array[]>();

  constructor(
    readonly name: string,
    readonly rows: Rows,
    readonly vectors: SiteVectors,
    private readonly edits: EditJson[],
  ) {
    this.made = this.mixAll();
    this.context = new Changes(edits).heads(`${name}.context`, this.made);
  }

  get n_heads(): number {
    return this.rows.plan.n_heads;
  }

  get n_query(): number {
    return this.vectors.query.rows;
  }

  get n_key(): number {
    return this.vectors.key.rows;
  }

  /** A key or value of a query head; shared ones are the same for a group. */
  shared(role: "key" | "value", head: number, row: number): Float32Array {
    const all = this.vectors[role];
    return headVector(all, Math.floor((head * all.heads) / this.n_heads), row);
  }

  preparedKeys(head: number): Float32Array[] {
    return remember(this.keys, head, () =>
      this.each(this.n_key, (row) => this.rows.prepare("key", head, this.shared("key", head, row))),
    );
  }

  preparedQueries(head: number): Float32Array[] {
    const { query } = this.vectors;
    return remember(this.queries, head, () =>
      this.each(this.n_query, (row) => this.rows.prepare("query", head, headVector(query, head, row))),
    );
  }

  values(head: number): Float32Array[] {
    return this.each(this.n_key, (row) => this.shared("value", head, row));
  }

  steps(head: number, query: number): Steps {
    return this.rows.steps(head, this.preparedQueries(head)[query], this.preparedKeys(head), query);
  }

  weights(head: number, query: number): ArrayLike<number> {
    return this.rows.weights(head, this.preparedQueries(head)[query], this.preparedKeys(head), query);
  }

  allowed(head: number, query: number): ArrayLike<number> {
    return this.rows.allowed(head, query, this.n_key);
  }

  /** A matrix of one head: queries by keys. */
  matrix(head: number, step: Exclude<MatrixStep, "weighted">): Matrix {
    const made = matrix(this.n_query, this.n_key);
    for (let query = 0; query < this.n_query; query++) {
      const row = step === "weight" ? this.weights(head, query) : this.steps(head, query)[step];
      made.data.set(row, query * this.n_key);
    }
    return made;
  }

  private mixAll(): HeadVectors {
    const { n_heads, d_value } = this.rows.plan;
    const made = {
      heads: n_heads,
      rows: this.n_query,
      columns: d_value,
      data: new Float32Array(n_heads * this.n_query * d_value),
    };
    for (let head = 0; head < n_heads; head++) {
      const values = this.values(head);
      for (let query = 0; query < this.n_query; query++)
        mixInto(headVector(made, head, query), this.weights(head, query), values);
    }
    return made;
  }

  private each(count: number, make: (row: number) => Float32Array): Float32Array[] {
    return Array.from({ length: count }, (_, row) => make(row));
  }

  cell(head: number, query: number, key: number, read: Pick<Cell, "input" | "input_start" | "latent">): Cell {
    const steps = this.steps(head, query);
    const { weighting, similarity } = this.rows;
    const [meeting, met] = [this.preparedQueries(head)[query], this.preparedKeys(head)[key]];
    const highest = steps.masked.reduce((most, one) => Math.max(most, one), -Infinity);
    const { kind, temperature } = weighting;
    const amounts =
      kind === "softmax"
        ? steps.masked.map((one) => (highest === -Infinity ? 0 : Math.exp((one - highest) / temperature)))
        : kind === "kernelized"
          ? steps.masked
          : null;
    const seen = steps.masked.map((one, place) => (steps.allowed[place] ? one : -Infinity));
    const value = Array.from(this.shared("value", head, key));
    const weight = steps.weight[key];
    const products = similarity.kind === "additive" || similarity.kind === "log features" ? [] : Array.from(meeting);
    return {
      kind,
      query: Array.from(meeting),
      key: Array.from(met),
      products: products.map((part, place) => part * met[place]),
      score: finite(steps.score[key]),
      scale: this.rows.scale[head],
      scaled: finite(steps.scaled[key]),
      bias: this.rows.bias(head, query, key),
      allowed: steps.allowed[key] === 1,
      masked: finite(steps.masked[key]),
      highest: finite(highest),
      temperature,
      exponential: amounts === null ? null : amounts[key],
      total: amounts === null ? null : amounts.reduce((total, one) => total + one, 0),
      weight,
      ties: argmax(seen).ties,
      value,
      share: value.map((part) => part * weight),
      context: Array.from(headVector(this.context, head, query)),
      turn: this.turn(head, query, key),
      ...read,
      n_query: this.n_query,
      n_key: this.n_key,
    };
  }

  private turn(head: number, query: number, key: number): Cell["turn"] {
    const { projected } = this.vectors;
    if (projected === null) return null;
    const shared = Math.floor((head * projected.key.heads) / this.n_heads);
    return {
      query: Array.from(headVector(projected.query, head, query)),
      key: Array.from(headVector(projected.key, shared, key)),
      query_position: query,
      key_position: key,
      pairs: this.rows.position.pairs!,
      query_angles: this.rows.angles(query),
      key_angles: this.rows.angles(key),
    };
  }

  /** What the page says of this attention. */
  meta(): SiteMeta {
    const [side, layer, slot] = this.name.split(".") as [SideName, string, SiteMeta["slot"]];
    const { plan, similarity, weighting, position, scale } = this.rows;
    const editsMask = this.edits.some((edit) => !isSwap(edit) && edit.step === "allowed");
    return {
      name: this.name,
      side,
      layer: Number(layer),
      slot,
      n_heads: plan.n_heads,
      n_kv_heads: plan.n_kv_heads,
      d_head: plan.d_head,
      d_value: plan.d_value,
      n_query: this.n_query,
      n_key: this.n_key,
      query_side: side,
      key_side: slot === "cross" ? "encoder" : side,
      similarity: similarity.name,
      weighting: weighting.name,
      position: position.name,
      mask: plan.mask.name,
      words: {
        similarity: similarity.words,
        weighting: weighting.words,
        position: position.words,
        mask: plan.mask.words,
      },
      arithmetic: {
        kind: weighting.kind,
        rule: weighting.rule,
        blocked: weighting.blocked,
        formula: similarity.formula,
        prepared: similarity.prepared,
        scale_reason: similarity.scale_reason,
        biased: position.biased,
        turns: position.turns,
        masks: editsMask || plan.mask.masks,
        causal: plan.mask.causal,
      },
      scale,
      kernel: "page",
      why: "",
      edited: this.edits.length > 0,
    };
  }
}

function remember<Value>(known: Map<number, Value>, key: number, make: () => Value): Value {
  const found = known.get(key) ?? make();
  known.set(key, found);
  return found;
}
