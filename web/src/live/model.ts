/** A model that runs: the blocks of clearhead/model/ over a plan, every named value passing through a tap. */

import type { Matrix, SideName } from "../lib/source";
import type {
  AttentionPlan,
  BranchPlan,
  PositionTable,
  HeadMapPlan,
  LinearPlan,
  NetworkPlan,
  NormPlan,
  OutputPlan,
  SidePlan,
  WidePlan,
} from "./plan";
import {
  activate,
  add,
  type HeadVectors,
  joinHeads,
  linear,
  mapped,
  matrix,
  type Norm,
  normSteps,
  rowOf,
  scaled,
  splitHeads,
  type Tensor,
  times,
} from "./tensor";

/** Sees a value by its name, and returns what goes on in its place. `whole`: one row for all tokens. */
export type Tap = (name: string, value: Matrix, whole?: boolean) => Matrix;
/** Gives the contexts of an attention for these vectors. */
export type Attend = (at: string, plan: AttentionPlan, x: Matrix) => HeadVectors;

export class Model {
  constructor(
    readonly plan: Partial<Record<SideName, SidePlan>>,
    readonly tensors: Map<string, Tensor>,
  ) {}

  get sides(): SideName[] {
    return Object.keys(this.plan) as SideName[];
  }

  side(name: SideName): SidePlan {
    return this.plan[name]!;
  }

  tensor(name: string): Tensor {
    return this.tensors.get(name)!;
  }

  linear(x: Matrix, plan: LinearPlan): Matrix {
    return linear(x, this.tensor(plan.weight), plan.bias === null ? null : this.tensor(plan.bias));
  }

  norm(plan: NormPlan): Norm {
    const { kind, epsilon, gamma, beta } = plan;
    return {
      kind,
      epsilon,
      gamma: this.tensor(gamma).data,
      beta: beta === null ? null : this.tensor(beta).data,
    };
  }

  /** The vectors of tokens at positions from `start` on. */
  embed(side: SideName, ids: number[], tap: Tap, start = 0): Matrix {
    const { embedding, d_model } = this.side(side);
    const at = `${side}.embedding`;
    const table = this.tensor(embedding.table).data;
    const rows = matrix(ids.length, d_model);
    ids.forEach((id, row) => rows.data.set(table.subarray(id * d_model, (id + 1) * d_model), row * d_model));
    let x = tap(`${at}.token`, scaled(rows, embedding.factor));
    if (embedding.segment !== null) {
      const first = this.tensor(embedding.segment).data.subarray(0, d_model);
      const same = matrix(ids.length, d_model);
      ids.forEach((_, row) => same.data.set(first, row * d_model));
      x = add(x, tap(`${at}.segment`, same));
    }
    if (embedding.position !== null)
      x = add(x, tap(`${at}.position`, this.positions(embedding.position, d_model, ids, start)));
    if (embedding.norm !== null) {
      if (embedding.position !== null || embedding.segment !== null) x = tap(`${at}.sum`, x);
      x = normSteps(this.norm(embedding.norm), x).out;
    }
    return tap(`${at}.out`, x);
  }

  /** The vectors of the positions; a token that takes none has the row before the first, or zeros. */
  positions(position: PositionTable, d_model: number, ids: number[], start: number): Matrix {
    const made = matrix(ids.length, d_model);
    let next = position.first + start;
    ids.forEach((id, row) => {
      const number = id === position.skips ? position.first - 1 : next++;
      if (position.kind === "learned")
        made.data.set(this.tensor(position.table).data.subarray(number * d_model, (number + 1) * d_model), row * d_model); // prettier-ignore
      else if (id !== position.skips) made.data.set(sinusoid(number, d_model, position), row * d_model);
    });
    return made;
  }

  /** The most positions there are; null for any number. */
  get reach(): number | null {
    const found = this.sides.flatMap((side) => {
      const { position } = this.side(side).embedding;
      return position?.kind === "learned" ? [this.tensor(position.table).shape[0] - position.first] : [];
    });
    return found.length === 0 ? null : Math.min(...found);
  }

  stack(side: SideName, x: Matrix, attend: Attend, tap: Tap): Matrix {
    const { blocks, norm } = this.side(side);
    blocks.forEach((branches, number) => {
      for (const branch of branches) x = this.branch(`${side}.${number}.${branch.branch}`, branch, x, attend, tap);
    });
    return norm === null ? x : tap(`${side}.normed`, normSteps(this.norm(norm), x).out);
  }

  /** A branch with its norm and residual, as its places say. */
  branch(at: string, plan: BranchPlan, x: Matrix, attend: Attend, tap: Tap): Matrix {
    let came = x;
    for (const { box, out } of plan.places) {
      if (box === "norm") came = tap(`${at}.${out}`, normSteps(this.norm(plan.norm!), came).out);
      else if (box === "add") came = tap(`${at}.${out}`, add(x, came));
      else came = this.inside(at, plan, came, attend, tap);
    }
    return came;
  }

  private inside(at: string, plan: BranchPlan, x: Matrix, attend: Attend, tap: Tap): Matrix {
    if (plan.network !== undefined) return this.network(at, plan.network, x, tap);
    return this.finish(at, plan.attention!, attend(at, plan.attention!, x), tap);
  }

  /** W_O of the contexts, side by side. */
  finish(at: string, plan: AttentionPlan, context: HeadVectors, tap: Tap): Matrix {
    const concat = tap(`${at}.concat`, joinHeads(context));
    return tap(`${at}.out`, plan.output === null ? concat : this.linear(concat, plan.output));
  }

  network(at: string, plan: NetworkPlan, x: Matrix, tap: Tap): Matrix {
    let hidden: Matrix;
    if (plan.gate === null) {
      const before = tap(`${at}.pre_activation`, this.linear(x, plan.up));
      hidden = activate(plan.activation, before);
    } else {
      const gate = tap(`${at}.gate`, this.linear(x, plan.gate));
      const open = tap(`${at}.activated_gate`, activate(plan.activation, gate));
      hidden = times(open, tap(`${at}.up`, this.linear(x, plan.up)));
    }
    return tap(`${at}.out`, this.linear(tap(`${at}.hidden`, hidden), plan.down));
  }

  /** Queries, keys or values of the heads, not yet turned; `mapped` before the norm of each head. */
  toHeads(plan: HeadMapPlan, heads: number, x: Matrix): { mapped: HeadVectors; normed: HeadVectors } {
    const made = splitHeads(this.linear(x, plan), heads);
    if (plan.norm === null) return { mapped: made, normed: made };
    const rows = { rows: made.heads * made.rows, columns: made.columns, data: made.data };
    return { mapped: made, normed: { ...made, data: normSteps(this.norm(plan.norm), rows).out.data } };
  }

  /** The logits of the last vectors: a row for each, or one for all. */
  output(side: SideName, x: Matrix, ids: number[], tap: Tap): Matrix {
    const plan = this.side(side).output!;
    const at = `${side}.output`;
    if (plan.kind === "classes") return this.classes(at, plan, x, ids, tap);
    if (plan.transform !== null) {
      const { norm, ...map } = plan.transform;
      const hidden = activate("gelu exact", this.linear(x, map));
      x = tap(`${at}.transformed`, normSteps(this.norm(norm), hidden).out);
    }
    const bias = plan.bias === null ? null : this.tensor(plan.bias);
    return tap(`${at}.logits`, linear(scaled(x, plan.factor), this.tensor(plan.table), bias));
  }

  private classes(
    at: string,
    plan: Extract<OutputPlan, { kind: "classes" }>,
    x: Matrix,
    ids: number[],
    tap: Tap,
  ): Matrix {
    let pooled = tap(`${at}.pooled`, pool(plan.pool, x), true);
    if (plan.hidden !== null) {
      const by = plan.activation === "tanh" ? Math.tanh : (value: number): number => Math.max(0, value);
      pooled = tap(`${at}.hidden`, mapped(this.linear(pooled, plan.hidden), by), true);
    }
    if (plan.wide === null) return tap(`${at}.logits`, this.linear(pooled, plan.out), true);
    const deep = tap(`${at}.deep`, this.linear(pooled, plan.out), true);
    const wide = tap(`${at}.wide_logits`, this.wide(plan.wide, ids), true);
    const [ofDeep, ofWide] = plan.wide.shares;
    return tap(`${at}.logits`, add(scaled(deep, ofDeep), scaled(wide, ofWide)), true);
  }

  /** Logits that are linear in the n-grams of the tokens. */
  private wide(plan: WidePlan, ids: number[]): Matrix {
    const bias = this.tensor(plan.bias).data;
    const logits = Float64Array.from(bias);
    for (const { order, slots, table, square } of plan.tables) {
      const keys = order === 1 ? ids : ngrams(ids, order, plan.buckets);
      const counts = new Map<number, number>();
      keys.slice(order - 1).forEach((key) => counts.set(key, (counts.get(key) ?? 0) + 1));
      const [weights, squares] = [this.tensor(table).data, this.tensor(square).data];
      const sum = new Float64Array(bias.length);
      let squared = 0;
      for (const [key, count] of counts) {
        const row = slots === null ? key : 1 + bisect(slots, key);
        const times = 1 + Math.log(count);
        for (let k = 0; k < sum.length; k++) sum[k] += weights[row * sum.length + k] * times;
        squared += squares[row] * times * times;
      }
      const factor = 1 / Math.sqrt(Math.max(squared, 1e-12));
      sum.forEach((value, k) => (logits[k] += value * factor));
    }
    return { rows: 1, columns: bias.length, data: Float32Array.from(logits) };
  }
}

/** The place of a number in a sorted list, -1 where it is not there: row 0 is that of n-grams without weights. */
function bisect(sorted: number[], wanted: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return sorted[low] === wanted ? low : -1;
}

/** The bucket of the n-gram that ends with each token. Whole numbers beyond 2⁵³ are needed on the way. */
function ngrams(ids: number[], order: number, buckets: number): number[] {
  return ids.map((_, place) => {
    let key = 0n;
    for (let back = order - 1; back >= 0; back--)
      key = (key * 1_000_003n + BigInt(ids[place - back] ?? 0) + 1n) % 2_147_483_647n;
    return Number(key % BigInt(buckets));
  });
}

function pool(kind: "first" | "last" | "mean", x: Matrix): Matrix {
  if (kind !== "mean")
    return { rows: 1, columns: x.columns, data: rowOf(x, kind === "first" ? 0 : x.rows - 1).slice() };
  const sum = new Float64Array(x.columns);
  for (let place = 0; place < x.data.length; place++) sum[place % x.columns] += x.data[place] / x.rows;
  return { rows: 1, columns: x.columns, data: Float32Array.from(sum) };
}

export function sinusoid(
  position: number,
  width: number,
  { layout, base }: { layout: "interleaved" | "halves"; base: number },
): Float64Array {
  const made = new Float64Array(width);
  for (let pair = 0; pair < width / 2; pair++) {
    const angle = position * base ** ((-2 * pair) / width);
    const [sin, cos] = layout === "halves" ? [pair, width / 2 + pair] : [2 * pair, 2 * pair + 1];
    made[sin] = Math.sin(angle);
    made[cos] = Math.cos(angle);
  }
  return made;
}
