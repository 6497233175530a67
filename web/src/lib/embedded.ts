/** The source inside a saved page: the same answers from the JSON that was written into it.
 *
 * The page has one element `<script type="application/json" id="clearhead-data">` with a `Saved` in it, in which every
 * "<" is written as \u003c. Numbers in blocks are zlib-compressed ("deflate") little-endian, then base64.
 */

import { cellOf, finite, rowSteps, type RowInputs, type Weighting } from "./arithmetic";
import {
  type Answering,
  type Answers,
  type AskBox,
  type AskCell,
  type AskColumn,
  askOwn,
  type AskRow,
  type Asks,
  type AskStream,
  type AskThumbs,
  type AskTile,
  type AskTrace,
  type AskVectors,
  type BoxNumbers,
  type Cell,
  type Column,
  type HeadChoice,
  type Lens,
  type Matrix,
  type MatrixStep,
  type Meta,
  type QuestionName,
  type Readings,
  type Row,
  type RunFacts,
  type SideName,
  type SiteMeta,
  type Source,
  SourceError,
  type Stream,
  type Thumbs,
  type Turn,
  type VectorRole,
  type ViewName,
} from "./source";
import { MASKED, thumbByte } from "./thumbs";
import { tileOf } from "./tiles";

/** Everything a saved page holds. */
export interface Saved {
  version: 1;
  run: RunFacts;
  meta: Meta;
  /** Of every site: one byte a weight (weight × 255, rounded), [head][query][key]. */
  weights: Record<string, string>;
  /** Of every site that masks: one bit a cell as in `Exact.allowed`. */
  allowed?: Record<string, string>;
  /** Of the sites that are exact. */
  exact: Record<string, Exact>;
  readings: Record<string, Readings>;
  lens: Lens | null;
  stream: Partial<Record<SideName, Stream>>;
  /** The numbers of boxes, of each side. */
  boxes?: Partial<Record<SideName, SavedBoxes>>;
}

/** What heads do not have for themselves: float32 vectors by name, and of some tokens all of them in one block. */
export interface SavedBoxes {
  /** Of no token in particular: what was learned, or made of all tokens. */
  shared: Record<string, string>;
  /** How many numbers each value has, in the order in which they lie in a token's block. */
  widths: Record<string, number>;
  tokens: Record<string, string>;
}

/** What an attention is computed from. Heads that share keys and values have them written once for each head. */
export interface Exact {
  /** float32 [head][n_query][d], as prepared: score = query · key. */
  query: string;
  /** float32 [head][n_key][d] */
  key: string;
  /** float32 [head][n_key][d_value] */
  value: string;
  /** Whether query and key were compared as they are: prepared is what the trace calls query and key. */
  plain?: boolean;
  /** scaled = score × scale, for each head. */
  scale: number[];
  /** Null where a page cannot compute the weights: then `weight` has them. */
  weighting: Weighting | null;
  /** float32 [head][n_query][n_key] */
  weight?: string;
  /** float32 [head][n_query][n_key], added to scaled; left out where it is zero. */
  bias?: string;
  /** One bit a cell, [query][key] (or [head][query][key]), the lowest bit of a byte first; left out: all allowed. */
  allowed?: string;
  /** float32 [head][n_query][n_key]: the score, where it is no product of two vectors. */
  score?: string;
  /** Where positions turned queries and keys: both before that, as above, and the angles float32 [n][pair]. */
  turn?: {
    query: string;
    key: string;
    pairs: [number, number][];
    query_positions: number[];
    key_positions: number[];
    query_angles: string;
    key_angles: string;
  };
}

interface Numbers {
  query: Float32Array;
  key: Float32Array;
  value: Float32Array;
  bias: Float32Array | null;
  weight: Float32Array | null;
  allowed: Uint8Array | null;
  score: Float32Array | null;
}

type Held = Exclude<MatrixStep, "allowed" | "weighted">;
const THUMB = 48;
const HERE = "This page was saved with views 1 to 4 of one text. For more, open the run: clearhead look RUN";

export function readSaved(text: string): Saved {
  if (text.trim() === "")
    throw new SourceError("This page holds no trace. Write one with: clearhead trace RUN TEXT --html F");
  return JSON.parse(text) as Saved;
}

export class EmbeddedSource implements Source {
  readonly views: readonly ViewName[] = ["model", "heads", "head", "steps"];
  private readonly blocks = new Map<string, Promise<Uint8Array>>();
  private readonly known = new Map<string, Promise<Numbers>>();

  constructor(private readonly saved: Saved) {}

  /** There are no requests to abort. */
  during(): this {
    return this;
  }

  ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    return askOwn(this as unknown as Answering, name, asked);
  }

  exact(site: string): boolean {
    return site in this.saved.exact;
  }

  async run(): Promise<RunFacts> {
    const { meta, run } = this.saved;
    return { ...run, examples: [{ source: meta.source }] };
  }

  async trace(request: AskTrace): Promise<Meta> {
    if (request.source !== this.saved.meta.source) throw new SourceError(HERE);
    return this.saved.meta;
  }

  async tile({ ...request }: Required<AskTile>): Promise<Matrix> {
    if (request.step === "allowed") {
      const mask = await this.mask(request.site, request.head === "mean" ? 0 : request.head);
      return tileOf(mask, request.level, request.row, request.column);
    }
    if (request.step === "weighted") throw new SourceError(HERE);
    const matrix = await this.matrix(request.site, request.head, request.step);
    return tileOf(matrix, request.level, request.row, request.column);
  }

  async thumbs({ site: name }: AskThumbs): Promise<Thumbs> {
    const site = this.site(name);
    const bytes = await this.weights(name);
    const masks = await Promise.all(Array.from({ length: site.n_heads }, (_, head) => this.mask(name, head)));
    const [rows, columns] = [Math.min(THUMB, site.n_query), Math.min(THUMB, site.n_key)];
    const data = new Uint8Array(site.n_heads * rows * columns).fill(MASKED);
    const size = site.n_query * site.n_key;
    for (let cell = 0; cell < bytes.length; cell++) {
      const [head, query, key] = [Math.floor(cell / size), Math.floor((cell % size) / site.n_key), cell % site.n_key];
      const y = Math.floor((query * rows) / site.n_query);
      const x = Math.floor((key * columns) / site.n_key);
      const place = (head * rows + y) * columns + x;
      if (masks[head].data[cell % size] === 0) continue;
      const shade = thumbByte(bytes[cell] / 255);
      if (data[place] === MASKED || shade > data[place]) data[place] = shade;
    }
    return { heads: site.n_heads, rows, columns, data };
  }

  async row({ site: name, head, query }: Required<AskRow>): Promise<Row> {
    const site = this.site(name);
    if (head === "mean" || !this.exact(name)) {
      const matrix = await this.matrix(name, head, "weight");
      return { weight: Array.from(matrix.data.subarray(query * site.n_key, (query + 1) * site.n_key)) };
    }
    const inputs = await this.inputs(name, head, query);
    const steps = rowSteps(inputs);
    return {
      query: inputs.query,
      score: steps.score,
      scaled: steps.scaled,
      masked: steps.masked.map(finite),
      weight: steps.weight,
      context: steps.context,
      allowed: inputs.allowed,
    };
  }

  async column({ site: name, head, key }: Required<AskColumn>): Promise<Column> {
    const { data, columns } = await this.matrix(name, head, "weight");
    return { weight: Array.from({ length: this.site(name).n_query }, (_, query) => data[query * columns + key]) };
  }

  async cell({ site: name, head, query, key }: Required<AskCell>): Promise<Cell> {
    const { n_query, n_key, arithmetic } = this.site(name);
    const cell = cellOf(await this.inputs(name, head, query), key, { kind: arithmetic.kind, n_query, n_key });
    return { ...cell, turn: await this.turn(name, head, query, key) };
  }

  async vectors(asked: AskVectors): Promise<Matrix> {
    if (asked.name) throw new SourceError(HERE);
    const request = asked as { site: string; head: number; role: VectorRole };
    const site = this.site(request.site);
    if (request.role === "context") return this.contexts(site, request.head);
    const numbers = await this.numbers(request.site);
    const [count, all] = request.role === "query" ? [site.n_query, numbers.query] : [site.n_key, numbers[request.role]];
    const columns = all.length / site.n_heads / count;
    const size = count * columns;
    return { rows: count, columns, data: all.slice(request.head * size, (request.head + 1) * size) };
  }

  async readings(): Promise<Record<string, Readings>> {
    return this.saved.readings;
  }

  async lens(): Promise<Lens> {
    if (this.saved.lens === null) throw new SourceError("This page was saved without the logit lens.");
    return this.saved.lens;
  }

  async stream({ side }: Required<AskStream>): Promise<Stream> {
    return this.saved.stream[side] ?? { rows: [] };
  }

  /** What the page holds of a box; it may be less than all of it. */
  async box({ ...request }: Required<AskBox>): Promise<BoxNumbers> {
    const side = request.box.split(".")[0] as SideName;
    const box = this.saved.run.sides.find((one) => one.side === side)?.boxes.find((one) => one.name === request.box);
    if (box === undefined) throw new SourceError(`There is no box called ${request.box} on this page.`);
    const held = await this.held(side, request.token);
    const heads = box.values.some((value) => value.per_head) ? await this.ofHead(request) : {};
    const wanted = box.values.flatMap((value) => [value.name, value.of, ...Object.values(value.operands)]);
    const known = wanted.flatMap((name) => {
      const found = heads[name] ?? held[name];
      return found === undefined ? [] : [[name, found] as const];
    });
    if (!box.values.some((value) => known.some(([name]) => name === value.name)))
      throw new SourceError(this.tokensHeld(side));
    const scale = this.saved.meta.sites.find((one) => one.name === box.name)?.scale[request.head];
    return {
      values: Object.fromEntries(known),
      constants: scale === undefined ? {} : { scale },
      labels: this.labels(request.token),
    };
  }

  async terms(): Promise<never> {
    throw new SourceError(`The weights of the model are not on this page. ${HERE}`);
  }

  private site(name: string): SiteMeta {
    const site = this.saved.meta.sites.find((one) => one.name === name);
    if (site === undefined) throw new SourceError(`There is no attention called ${name} on this page.`);
    return site;
  }

  /** Where a head's queries may attend: 1, else 0. */
  private async mask(name: string, head: number): Promise<Matrix> {
    const { n_query, n_key } = this.site(name);
    const packed = this.saved.allowed?.[name];
    const bits = packed === undefined ? null : await inflate(packed);
    const data = new Float32Array(n_query * n_key);
    for (let query = 0; query < n_query; query++)
      allowedRow(bits, head, query, n_query, n_key).forEach((may, key) => (data[query * n_key + key] = may ? 1 : 0));
    return { rows: n_query, columns: n_key, data };
  }

  private async turn(name: string, head: number, query: number, key: number): Promise<Turn | null> {
    const saved = this.saved.exact[name].turn;
    if (saved === undefined) return null;
    const { n_heads, n_query, n_key } = this.site(name);
    const packed = [saved.query, saved.key, saved.query_angles, saved.key_angles];
    const [queries, keys, queryAngles, keyAngles] = await Promise.all(
      packed.map(async (text) => new Float32Array((await inflate(text)).buffer)),
    );
    const row = (all: Float32Array, count: number, place: number): number[] => {
      const width = all.length / count;
      return Array.from(all.subarray(place * width, (place + 1) * width));
    };
    return {
      query: row(queries, n_heads * n_query, head * n_query + query),
      key: row(keys, n_heads * n_key, head * n_key + key),
      query_position: saved.query_positions[query],
      key_position: saved.key_positions[key],
      pairs: saved.pairs,
      query_angles: row(queryAngles, n_query, query),
      key_angles: row(keyAngles, n_key, key),
    };
  }

  private weights(site: string): Promise<Uint8Array> {
    let found = this.blocks.get(site);
    if (found === undefined) this.blocks.set(site, (found = inflate(this.saved.weights[site])));
    return found;
  }

  /** A whole matrix of one head, or of the mean: exact where it can be, else from one byte a weight. */
  private async matrix(name: string, head: HeadChoice, step: Held): Promise<Matrix> {
    const { n_heads, n_query, n_key } = this.site(name);
    const heads = head === "mean" ? Array.from({ length: n_heads }, (_, one) => one) : [head];
    const made = new Float32Array(n_query * n_key);
    for (const one of heads) {
      const values = this.exact(name) ? await this.exactly(name, one, step) : await this.roughly(name, one, step);
      for (let cell = 0; cell < made.length; cell++) made[cell] += values[cell] / heads.length;
    }
    return { rows: n_query, columns: n_key, data: made };
  }

  private async exactly(name: string, head: number, step: Held): Promise<ArrayLike<number>> {
    const { n_query, n_key } = this.site(name);
    const made = new Float64Array(n_query * n_key);
    for (let query = 0; query < n_query; query++)
      made.set(rowSteps(await this.inputs(name, head, query))[step], query * n_key);
    return made;
  }

  private async roughly(name: string, head: number, step: MatrixStep): Promise<ArrayLike<number>> {
    if (step !== "weight") throw new SourceError(this.onlyWeights(name));
    const size = this.site(name).n_query * this.site(name).n_key;
    return Float32Array.from((await this.weights(name)).subarray(head * size, (head + 1) * size), (byte) => byte / 255);
  }

  private async contexts(site: SiteMeta, head: number): Promise<Matrix> {
    const rows: number[][] = [];
    for (let query = 0; query < site.n_query; query++)
      rows.push(rowSteps(await this.inputs(site.name, head, query)).context);
    return { rows: rows.length, columns: rows[0].length, data: Float32Array.from(rows.flat()) };
  }

  private numbers(name: string): Promise<Numbers> {
    if (!this.exact(name)) return Promise.reject(new SourceError(this.onlyWeights(name)));
    let found = this.known.get(name);
    if (found === undefined) this.known.set(name, (found = unpacked(this.saved.exact[name])));
    return found;
  }

  private async inputs(name: string, head: number, query: number): Promise<RowInputs> {
    const { n_heads, n_query, n_key, arithmetic } = this.site(name);
    const numbers = await this.numbers(name);
    const vectors = (all: Float32Array, count: number): Float32Array[] => {
      const width = all.length / n_heads / count;
      const start = head * count * width;
      return Array.from({ length: count }, (_, n) => all.subarray(start + n * width, start + (n + 1) * width));
    };
    const first = (head * n_query + query) * n_key;
    const row = (all: Float32Array | null): Float32Array | null => all && all.subarray(first, first + n_key);
    return {
      query: Array.from(vectors(numbers.query, n_query)[query]),
      keys: vectors(numbers.key, n_key),
      values: vectors(numbers.value, n_key),
      scale: this.saved.exact[name].scale[head],
      weighting: this.saved.exact[name].weighting,
      weight: row(numbers.weight),
      blocked: arithmetic.blocked ?? -Infinity,
      bias: row(numbers.bias),
      score: row(numbers.score),
      allowed: allowedRow(numbers.allowed, head, query, n_query, n_key),
    };
  }

  /** The vectors of a side by name: those of one token, and those that are of none. */
  private async held(side: SideName, token: number): Promise<Record<string, number[]>> {
    const saved = this.saved.boxes?.[side];
    if (saved === undefined) return {};
    const floats = async (text: string): Promise<number[]> => [...new Float32Array((await inflate(text)).buffer)];
    const shared = Object.entries(saved.shared).map(async ([name, text]) => [name, await floats(text)] as const);
    const found = Object.fromEntries(await Promise.all(shared));
    if (saved.tokens[token] === undefined) return found;
    const all = await floats(saved.tokens[token]);
    let start = 0;
    for (const [name, width] of Object.entries(saved.widths)) {
      found[name] = all.slice(start, start + width);
      start += width;
    }
    return found;
  }

  /** The steps of one head, of a site that the page has every number of. */
  private async ofHead(request: Required<AskBox>): Promise<Record<string, (number | null)[]>> {
    const [at, { token, key, head }] = [request.box, request];
    if (!this.exact(at)) return {};
    const { query, score, scaled, masked, weight, context } = await this.row({
      trace: "",
      site: at,
      head,
      query: token,
    });
    const vector = async (role: "key" | "value"): Promise<number[]> => {
      const { columns, data } = await this.vectors({ trace: "", site: at, head, role });
      return Array.from(data.subarray(key * columns, (key + 1) * columns));
    };
    const plain = this.saved.exact[at].plain ? { query, key: await vector("key") } : {};
    const steps = { ...plain, value: await vector("value"), score, scaled, masked, weight, context };
    return Object.fromEntries(Object.entries(steps).map(([step, numbers]) => [`${at}.${step}`, numbers!]));
  }

  private labels(token: number): Record<string, string> {
    const row = this.saved.meta.candidates[token] ?? [];
    return Object.fromEntries(row.map((one) => [one.id, one.text]));
  }

  private tokensHeld(side: SideName): string {
    const tokens = Object.keys(this.saved.boxes?.[side]?.tokens ?? {});
    const held = tokens.length === 0 ? "no token" : `the tokens ${tokens.join(", ")}`;
    return `This page holds the numbers of boxes for ${held} of the ${side}. ${HERE}`;
  }

  private onlyWeights(name: string): string {
    const sites = Object.keys(this.saved.exact).join(", ") || "none";
    return `This page holds only the weights of ${name}; every number is here of: ${sites}.`;
  }
}

async function unpacked(exact: Exact): Promise<Numbers> {
  const floats = async (text: string | undefined): Promise<Float32Array | null> =>
    text === undefined ? null : new Float32Array((await inflate(text)).buffer);
  const [query, key, value, bias, score, weight] = await Promise.all(
    [exact.query, exact.key, exact.value, exact.bias, exact.score, exact.weight].map(floats),
  );
  const allowed = exact.allowed === undefined ? null : await inflate(exact.allowed);
  return { query: query!, key: key!, value: value!, bias, score, weight, allowed };
}

/** Which keys a query may attend; the bits are of one head where all heads have the same. */
function allowedRow(bits: Uint8Array | null, head: number, query: number, n_query: number, n_key: number): boolean[] {
  if (bits === null) return new Array<boolean>(n_key).fill(true);
  const one = n_query * n_key;
  const start = (bits.length * 8 >= one * 2 ? head * one : 0) + query * n_key;
  return Array.from({ length: n_key }, (_, key) => ((bits[(start + key) >> 3] >> ((start + key) & 7)) & 1) === 1);
}

/** Bytes out of base64 of zlib's format; a fresh buffer, so that numbers in it are aligned. */
export async function inflate(text: string): Promise<Uint8Array<ArrayBuffer>> {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let place = 0; place < packed.length; place++) packed[place] = letters.charCodeAt(place);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
