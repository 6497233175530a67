/** Decoding: greedy and beam search on a KV cache, as clearhead/decoding/ does them. */

import type { EditJson, Matrix, SideName } from "../lib/source";
import { mixInto, Rows } from "./attention";
import { Changes } from "./changes";
import type { Model, Tap } from "./model";
import type { AttentionPlan, Live } from "./plan";
import type { Decoding } from "./task";
import { type HeadVectors, headVector, largest, logSoftmax, matrix, rowOf } from "./tensor";
import { Trace } from "./trace";

/** Rows of tokens being continued; `logits` are those of the next token of each. */
export interface Session {
  logits: Matrix;
  /** Goes on from these rows, some of them several times, each with one more token. */
  extend(rows: number[], tokens: number[]): void;
}

export function openSession(
  model: Model,
  live: Pick<Live, "weightings" | "run">,
  decoding: Decoding,
  edits: EditJson[],
): Session {
  return edits.length > 0 ? new EditedSession(model, live, decoding, edits) : new CachedSession(model, decoding);
}

const same: Tap = (_, value) => value;

/** The keys, as they are compared, and the values of one beam: a vector for each head and token. */
interface Cache {
  keys: Float32Array[][];
  values: Float32Array[][];
}

export class CachedSession implements Session {
  logits: Matrix;
  private readonly side: SideName = "decoder";
  private caches: Map<string, Cache>[];
  private readonly rows = new Map<string, Rows>();
  private readonly memory = new Map<string, Cache>();
  private readonly encoded: Matrix | null;
  private position = 0;

  constructor(
    private readonly model: Model,
    decoding: Decoding,
  ) {
    this.encoded = decoding.prefix === null ? null : this.encode(decoding.source);
    this.caches = [new Map()];
    const prompt = decoding.prefix ?? decoding.source;
    this.logits = this.read(prompt, (at, plan, x) => this.attendPrompt(at, plan, x));
  }

  private encode(ids: number[]): Matrix {
    const embedded = this.model.embed("encoder", ids, same);
    return this.model.stack("encoder", embedded, (at, plan, x) => this.whole(at, plan, x), same);
  }

  /** Attention within a text that is read at once. */
  private whole(at: string, plan: AttentionPlan, x: Matrix): HeadVectors {
    const cache: Cache = this.store(at, plan, x, null, 0);
    return this.mix(
      at,
      plan,
      x,
      0,
      () => cache,
      (row) => row,
    );
  }

  extend(rows: number[], tokens: number[]): void {
    this.caches = rows.map(
      (row) =>
        new Map(
          [...this.caches[row]].map(([at, { keys, values }]) => [
            at,
            { keys: keys.map((one) => [...one]), values: values.map((one) => [...one]) },
          ]),
        ),
    );
    this.logits = this.read(tokens, (at, plan, x) => this.attendStep(at, plan, x), 1);
  }

  /** The logits after new tokens: of one beam after another (`columns` 1), or of all tokens of the only one. */
  private read(tokens: number[], attend: Parameters<Model["stack"]>[2], columns = tokens.length): Matrix {
    const x = matrix(tokens.length, this.model.side(this.side).d_model);
    const starts = columns === 1 ? tokens.map(() => this.position) : tokens.map((_, place) => this.position + place);
    tokens.forEach((token, row) =>
      x.data.set(this.model.embed(this.side, [token], same, starts[row]).data, row * x.columns),
    );
    const states = this.model.stack(this.side, x, attend, same);
    const last = columns === 1 ? states : { rows: 1, columns: states.columns, data: rowOf(states, states.rows - 1) };
    this.position += columns;
    return this.model.output(this.side, last, [], same);
  }

  private attendPrompt(at: string, plan: AttentionPlan, x: Matrix): HeadVectors {
    if (at.endsWith(".cross")) return this.cross(at, plan, x);
    const cache = this.store(at, plan, x, null, this.position);
    this.caches[0].set(at, cache);
    return this.mix(
      at,
      plan,
      x,
      this.position,
      () => cache,
      (row) => this.position + row,
    );
  }

  private attendStep(at: string, plan: AttentionPlan, x: Matrix): HeadVectors {
    if (at.endsWith(".cross")) return this.cross(at, plan, x);
    for (let row = 0; row < x.rows; row++) {
      const one = { rows: 1, columns: x.columns, data: rowOf(x, row) };
      this.store(at, plan, one, this.caches[row].get(at)!, this.position);
    }
    return this.mix(
      at,
      plan,
      x,
      this.position,
      (row) => this.caches[row].get(at)!,
      () => this.position,
      true,
    );
  }

  private cross(at: string, plan: AttentionPlan, x: Matrix): HeadVectors {
    let cache = this.memory.get(at);
    if (cache === undefined) this.memory.set(at, (cache = this.store(at, plan, this.encoded!, null, 0)));
    const together = x.rows > 1 && this.position > 0;
    return this.mix(at, plan, x, this.position, () => cache, (row) => (together ? this.position : this.position + row), together); // prettier-ignore
  }

  private rowsOf(at: string, plan: AttentionPlan): Rows {
    const found = this.rows.get(at) ?? new Rows(plan, this.model.tensors);
    this.rows.set(at, found);
    return found;
  }

  /** Adds keys and values of some vectors to a cache, or to a new one. */
  private store(at: string, plan: AttentionPlan, x: Matrix, into: Cache | null, first: number): Cache {
    const rows = this.rowsOf(at, plan);
    const key = rows.turn(this.model.toHeads(plan.key, plan.n_kv_heads, x).normed, first);
    const value = this.model.toHeads(plan.value, plan.n_kv_heads, x).normed;
    const empty = (): Float32Array[][] => Array.from({ length: plan.n_heads }, () => []);
    const cache = into ?? { keys: empty(), values: empty() };
    for (let head = 0; head < plan.n_heads; head++) {
      const shared = Math.floor((head * plan.n_kv_heads) / plan.n_heads);
      for (let row = 0; row < x.rows; row++) {
        cache.keys[head].push(rows.prepare("key", head, headVector(key, shared, row)));
        cache.values[head].push(headVector(value, shared, row));
      }
    }
    return cache;
  }

  /** The contexts of some queries; `together`: all stand at one position, else one after another from `first` on. */
  private mix(
    at: string,
    plan: AttentionPlan,
    x: Matrix,
    first: number,
    cacheOf: (row: number) => Cache,
    positionOf: (row: number) => number,
    together = false,
  ): HeadVectors {
    const rows = this.rowsOf(at, plan);
    const projected = this.model.toHeads(plan.query, plan.n_heads, x).normed;
    const query = together ? turnTogether(rows, projected, first) : rows.turn(projected, first);
    const made = { heads: plan.n_heads, rows: x.rows, columns: plan.d_value, data: new Float32Array(plan.n_heads * x.rows * plan.d_value) }; // prettier-ignore
    for (let head = 0; head < plan.n_heads; head++)
      for (let row = 0; row < x.rows; row++) {
        const { keys, values } = cacheOf(row);
        const prepared = rows.prepare("query", head, headVector(query, head, row));
        mixInto(headVector(made, head, row), rows.weights(head, prepared, keys[head], positionOf(row)), values[head]);
      }
    return made;
  }
}

/** Queries of several beams, which stand at the same position. */
function turnTogether(rows: Rows, vectors: HeadVectors, position: number): HeadVectors {
  if (!rows.position.turns) return vectors;
  const flat = { ...vectors, heads: vectors.heads * vectors.rows, rows: 1 };
  return { ...vectors, data: rows.turn(flat, position).data };
}

/** A changed model reads the whole text again at every step; an edit of a place that is not there yet waits for it. */
class EditedSession implements Session {
  logits: Matrix;
  private rows: number[][];

  constructor(
    private readonly model: Model,
    private readonly live: Pick<Live, "weightings" | "run">,
    private readonly decoding: Decoding,
    private readonly edits: EditJson[],
  ) {
    this.rows = [decoding.prefix ?? decoding.source];
    this.logits = this.read();
  }

  extend(rows: number[], tokens: number[]): void {
    this.rows = rows.map((row, place) => [...this.rows[row], tokens[place]]);
    this.logits = this.read();
  }

  private read(): Matrix {
    const each = this.rows.map((ids) => {
      const inputs =
        this.decoding.prefix === null
          ? { ids: { decoder: ids }, tokens: {} }
          : { ids: { encoder: this.decoding.source, decoder: ids }, tokens: {} };
      const trace = new Trace(this.model, this.live, inputs, new Changes(this.edits).reaching(ids.length).edits);
      return rowOf(trace.logits(), ids.length - 1);
    });
    return { rows: each.length, columns: each[0].length, data: Float32Array.from(each.flatMap((row) => [...row])) };
  }
}

function logProbs(session: Session, row: number, { never }: Decoding): Float64Array {
  const logs = logSoftmax(rowOf(session.logits, row));
  for (const token of never) logs[token] = -Infinity;
  return logs;
}

/** The likeliest token after the likeliest, until one ends it. */
export function greedy(session: Session, decoding: Decoding): number[] {
  const tokens: number[] = [];
  while (tokens.length < decoding.max_new) {
    const logs = logProbs(session, 0, decoding);
    const [best] = largest(logs, 1);
    if (logs[best] === -Infinity) break;
    tokens.push(best);
    if (decoding.end.includes(best) || tokens.length === decoding.max_new) break;
    session.extend([0], [best]);
  }
  return tokens;
}

/** A token of a beam, and the node it follows. */
export interface Node {
  parent: Node | null;
  token: number;
  total: number;
  shown: [number, number][];
}

export interface Hypothesis {
  tokens: number[];
  score: number;
  ended: boolean;
}

/** One step of the search: the beams before it, what was found, the best first, and those that go on. */
export interface Considered {
  length: number;
  beams: Node[];
  found: { total: number; beam: number; token: number; shown: [number, number][] }[];
  live: Node[];
}

export const ROOT: Node = { parent: null, token: -1, total: 0, shown: [] };

/** Beam search with the mean log-probability as its score. `watch` sees every step. */
export function beamSearch(
  session: Session,
  decoding: Decoding,
  width: number,
  candidates: number,
  watch: (step: Considered) => void,
): Hypothesis[] {
  const { end, max_new } = decoding;
  const keep = Math.max(2, 1 + end.length) * width;
  let beams: Node[] = [ROOT];
  let finished: { node: Node; score: number }[] = [];
  for (let length = 1; length <= max_new; length++) {
    const { found, shown } = continuations(session, decoding, beams, keep, candidates);
    const goes = (one: { total: number; token: number }): boolean =>
      one.total !== -Infinity && !end.includes(one.token);
    const last = length === max_new;
    const live = found.filter((one) => goes(one) && !last).slice(0, width);
    const nodes = live.map(({ beam, token, total }) => ({ parent: beams[beam], token, total, shown: shown[beam] }));
    const ends = found.slice(0, width).filter((one) => one.total !== -Infinity && (last || !goes(one)));
    const made = ends.map(({ beam, token, total }) => ({
      node: { parent: beams[beam], token, total, shown: shown[beam] },
      score: total / length,
    }));
    finished = stableBest([...finished, ...made], width);
    if (found.every((one) => one.total === -Infinity) && finished.length === 0)
      finished = stableBest(
        beams.map((node) => ({ node, score: node.total / Math.max(1, length - 1) })),
        width,
      );
    watch({ length, beams, found: found.map((one) => ({ ...one, shown: shown[one.beam] })), live: nodes });
    const best = live[0]?.total ?? -Infinity;
    const worst = finished.length < width ? -Infinity : finished.at(-1)!.score;
    if (last || best / max_new <= worst || live.length === 0) break;
    session.extend(
      live.map(({ beam }) => beam),
      live.map(({ token }) => token),
    );
    beams = nodes;
  }
  return finished.map(({ node, score }) => {
    const tokens: number[] = [];
    for (let at: Node = node; at.parent !== null; at = at.parent) tokens.unshift(at.token);
    return { tokens, score, ended: tokens.length > 0 && end.includes(tokens.at(-1)!) };
  });
}

function continuations(
  session: Session,
  decoding: Decoding,
  beams: Node[],
  keep: number,
  candidates: number,
): { found: { total: number; beam: number; token: number }[]; shown: [number, number][][] } {
  const every: { total: number; beam: number; token: number }[] = [];
  const shown: [number, number][][] = [];
  beams.forEach((node, beam) => {
    const plain = logSoftmax(rowOf(session.logits, beam));
    shown.push(largest(plain, Math.min(candidates, plain.length)).map((token) => [token, plain[token]]));
    const logs = logProbs(session, beam, decoding);
    for (const token of largest(logs, Math.min(keep, logs.length)))
      every.push({ total: node.total + logs[token], beam, token });
  });
  const totals = every.map(({ total }) => total);
  return { found: largest(totals, Math.min(keep, totals.length)).map((place) => every[place]), shown };
}

function stableBest<Value extends { score: number }>(all: Value[], count: number): Value[] {
  return all.toSorted((a, b) => b.score - a.score).slice(0, count);
}
