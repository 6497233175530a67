/** A source with plausible numbers and no model behind it: for looking at pages while there is no server. */

import { cellOf, cosine, length, rowSteps, type RowInputs, type Weighting } from "../src/lib/arithmetic";
import {
  type Answering,
  type Answers,
  type AskBox,
  type AskCell,
  type AskColumn,
  type AskContext,
  type AskCurves,
  type AskDecode,
  type AskEffects,
  type AskLens,
  askOwn,
  type AskPositions,
  type AskReadings,
  type AskRow,
  type Asks,
  type AskSentence,
  type AskSpaces,
  type AskStream,
  type AskTerms,
  type AskThumbs,
  type AskTile,
  type AskTrace,
  type AskVectors,
  type BoxNumbers,
  type BoxTerms,
  type Candidate,
  type Cell,
  type Column,
  type ContextAnswer,
  type Curves,
  type Decoded,
  type DecodeNode,
  type Effects,
  type Lens,
  type Matrix,
  type Meta,
  type Positions,
  type QuestionName,
  type Readings,
  type Row,
  type RunFacts,
  type Sentence,
  type Sequence,
  type SideName,
  type SideSpec,
  type SiteMeta,
  type Slot,
  type Source,
  SourceError,
  type Spaces,
  type Stream,
  type Thumbs,
} from "../src/lib/source";
import { thumbByte } from "../src/lib/thumbs";
import { tileOf, TILE } from "../src/lib/tiles";
import { boxesOfSide, type Branch, PRE } from "./boxes";
import { VIEWS } from "../src/lib/address";

const HEADS = 4;
const D = 16;
const D_MODEL = 64;
const LAYERS = 2;

const SOURCE = ["vier", "und", "zwanzig", "tausend", "drei", "hundert", "zwei", "und", "vierzig", "</s>"];
const TARGET = ["<s>", "twenty", "-", "four", " thousand", " three", " hundred", " forty", "-", "two"];
const ANSWER = ["twenty", "-", "four", " thousand", " three", " hundred", " forty", "-", "two", "</s>"];
const ALIGNED = [2, 1, 0, 3, 4, 5, 8, 7, 6, 9];

const branchesOf = (side: SideName): Branch[] =>
  (["attention", ...(side === "decoder" ? (["cross"] as const) : []), "feed_forward"] as const).map((kind) => ({
    kind,
    places: PRE,
  }));

export class FakeSource implements Source {
  readonly views = VIEWS;
  private readonly traces = new Map<string, { meta: Meta; heads: Map<string, FakeHead> }>();

  during(): this {
    return this;
  }

  ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    return askOwn(this as unknown as Answering, name, asked);
  }

  exact(): boolean {
    return true;
  }

  async run(): Promise<RunFacts> {
    const side = (name: SideName): SideSpec => ({
      side: name,
      n_layers: LAYERS,
      d_model: D_MODEL,
      layers: Array.from({ length: LAYERS }, () => ({
        attention: spec(),
        ...(name === "decoder" ? { cross: spec() } : {}),
        feed_forward: "64 → 256 → 64 gelu",
        arrangement: "PreNorm",
      })),
      boxes: boxesOfSide(name, LAYERS, branchesOf(name), true),
      embedding: { position: "Sinusoidal", scaled: true },
    });
    return {
      name: "number-words",
      path: "runs/number-words",
      task: "translate",
      context: 64,
      step: 300,
      steps: [50, 100, 150, 200, 250, 300],
      film: [],
      kind: "encoder-decoder",
      parameters: 683_264,
      vocabulary: 412,
      sides: [side("encoder"), side("decoder")],
      target: "writes",
      place: "first",
      fields: ["source", "target"],
      examples: [
        { source: "vierundzwanzigtausenddreihundertzweiundvierzig" },
        { source: "siebenundneunzig" },
        { source: "long 600" },
        { source: "long 4096" },
      ],
      training: false,
    };
  }

  async trace(request: AskTrace): Promise<Meta> {
    await wait(60);
    if (request.source.trim() === "") throw new SourceError("The source is empty: type a text to look at.", 400);
    const id = hash(JSON.stringify(request)).toString(16);
    const long = Number(/^long (\d+)$/.exec(request.source)?.[1] ?? 0);
    const source = long ? Array.from({ length: long }, (_, i) => SOURCE[i % 9]) : SOURCE;
    const target = long ? Array.from({ length: long }, (_, i) => TARGET[i % 10]) : TARGET;
    const sides = {
      encoder: { tokens: source, ids: source.map(hash16), n_layers: LAYERS, d_model: D_MODEL },
      decoder: { tokens: target, ids: target.map(hash16), n_layers: LAYERS, d_model: D_MODEL },
    };
    const site = (side: SideName, layer: number, slot: Slot): SiteMeta => {
      const keySide: SideName = slot === "cross" ? "encoder" : side;
      const name = `${side}.${layer}.${slot}`;
      return {
        name,
        side,
        layer,
        slot,
        n_heads: HEADS,
        n_kv_heads: HEADS,
        d_head: D,
        d_value: D,
        n_query: sides[side].tokens.length,
        n_key: sides[keySide].tokens.length,
        query_side: side,
        key_side: keySide,
        similarity: "ScaledDot()",
        weighting: "Softmax()",
        position: "NoPosition",
        mask: side === "decoder" && slot === "attention" ? "Causal" : "Everything",
        words: {
          similarity: "scaled dot product",
          weighting: "softmax",
          position: "no positions",
          mask: side === "decoder" && slot === "attention" ? "causal mask" : "no mask",
        },
        arithmetic: {
          kind: "softmax",
          rule: "softmax(score / temperature)",
          blocked: null,
          formula: "query · key",
          prepared: "prepared {}",
          scale_reason: "the factor of this similarity",
          biased: false,
          turns: false,
          masks: side === "decoder" && slot === "attention",
          causal: side === "decoder" && slot === "attention",
        },
        scale: Array.from({ length: HEADS }, () => D ** -0.5),
        kernel: "sdpa",
        why: "",
        edited: (request.edits ?? []).some((edit) => edit.at === name),
      };
    };
    const sites = [
      ...Array.from({ length: LAYERS }, (_, layer) => site("encoder", layer, "attention")),
      ...Array.from({ length: LAYERS }, (_, layer) => [
        site("decoder", layer, "attention"),
        site("decoder", layer, "cross"),
      ]).flat(),
    ];
    const meta: Meta = {
      id,
      source: request.source,
      target: "twenty-four thousand three hundred forty-two",
      edits: request.edits ?? [],
      step: request.step ?? null,
      notes: request.target == null ? ["The target is the model's own greedy output."] : [],
      kind: "encoder-decoder",
      sides,
      sites,
      names: streamNames("encoder").concat(streamNames("decoder")),
      candidates: target.map((_, place) => guesses(ANSWER[place % 10], place, 0.93)),
      answer: "twenty-four thousand three hundred forty-two",
    };
    this.traces.set(id, { meta, heads: new Map() });
    return meta;
  }

  async tile({ trace: id, ...request }: Required<AskTile>): Promise<Matrix> {
    await wait(30);
    const site = this.site(id, request.site);
    if (site.n_query * site.n_key > 1e6) return bigTile(site, { trace: id, ...request });
    return tileOf(this.matrix(id, { trace: id, ...request }), request.level, request.row, request.column);
  }

  async thumbs({ trace: id, site }: AskThumbs): Promise<Thumbs> {
    const meta = this.site(id, site);
    const size = (n: number): number => Math.min(48, n);
    const [rows, columns] = [size(meta.n_query), size(meta.n_key)];
    const data = new Uint8Array(HEADS * rows * columns);
    if (meta.n_query * meta.n_key > 1e6)
      return { heads: HEADS, rows, columns, data: data.map((_, i) => (i * 7) % 255) };
    for (let head = 0; head < HEADS; head++) {
      const matrix = this.matrix(id, {
        trace: id,
        site,
        head,
        rollout: 0,
        step: "weight",
        level: 0,
        row: 0,
        column: 0,
      });
      for (let y = 0; y < meta.n_query; y++)
        for (let x = 0; x < meta.n_key; x++) {
          const [ty, tx] = [Math.floor((y * rows) / meta.n_query), Math.floor((x * columns) / meta.n_key)];
          const place = (head * rows + ty) * columns + tx;
          data[place] = Math.max(data[place], thumbByte(matrix.data[y * meta.n_key + x]));
        }
    }
    return { heads: HEADS, rows, columns, data };
  }

  async row({ trace: id, site, head, query }: Required<AskRow>): Promise<Row> {
    const meta = this.site(id, site);
    if (head === "mean") {
      const rows = Array.from({ length: HEADS }, (_, h) => rowSteps(this.head(id, site, h).inputs(query)).weight);
      return { weight: Array.from({ length: meta.n_key }, (_, k) => rows.reduce((s, r) => s + r[k], 0) / HEADS) };
    }
    const inputs = this.head(id, site, head).inputs(query);
    const steps = rowSteps(inputs);
    return {
      query: inputs.query,
      score: steps.score,
      scaled: steps.scaled,
      masked: steps.masked.map((one) => (one === -Infinity ? null : one)),
      weight: steps.weight,
      context: steps.context,
      allowed: inputs.allowed,
    };
  }

  async column({ trace: id, site, head, key }: Required<AskColumn>): Promise<Column> {
    const meta = this.site(id, site);
    const rows = Array.from({ length: meta.n_query }, (_, query) => this.row({ trace: id, site, head, query }));
    return { weight: (await Promise.all(rows)).map((row) => row.weight[key]) };
  }

  async cell({ trace: id, site, head, query, key }: Required<AskCell>): Promise<Cell> {
    const { n_query, n_key } = this.site(id, site);
    return {
      ...cellOf(this.head(id, site, head).inputs(query), key, { kind: "softmax", n_query, n_key }),
      input: noise(query + 9, D_MODEL),
    };
  }

  async vectors({ trace: id, site, head: index, role }: AskVectors): Promise<Matrix> {
    const head = this.head(id, site!, index!);
    if (role === "context") return matrixOf(head.queries.map((_, q) => rowSteps(head.inputs(q)).context));
    return matrixOf({ query: head.queries, key: head.keys, value: head.values }[role!]);
  }

  async readings({ trace: id }: AskReadings): Promise<Record<string, Readings>> {
    const of = (seed: number, low: number, high: number): number[] =>
      Array.from({ length: HEADS }, (_, head) => low + (high - low) * chance(seed + head));
    return Object.fromEntries(
      this.found(id).meta.sites.map((site) => {
        const seed = hash(site.name);
        return [
          site.name,
          {
            entropy: of(seed, 0.2, 2),
            distance: of(seed + 20, 0.5, 5),
            first: of(seed + 100, 0, 0.9),
            itself: of(seed + 120, 0, 0.5),
            previous: of(seed + 40, 0, 0.8),
            same: of(seed + 60, 0, 0.4),
            induction: of(seed + 80, 0, 0.3),
            gain: of(seed + 90, 0.4, 1.6),
          },
        ];
      }),
    );
  }

  async lens({ trace: id }: AskLens): Promise<Lens> {
    const n = this.found(id).meta.sides.decoder!.tokens.length;
    const names = [
      "decoder.embedding.out",
      ...Array.from({ length: LAYERS }, (_, layer) => `decoder.${layer}.feed_forward.residual`),
    ];
    return {
      side: "decoder",
      layers: names.map((name, depth) => ({
        name,
        rows: Array.from({ length: n }, (_, place) =>
          guesses(
            chance(place * 7 + depth) < depth * 0.45 ? ANSWER[place % 10] : TARGET[(place + depth) % 10],
            place,
            0.2 + depth * 0.35,
          ).slice(0, 5),
        ),
      })),
    };
  }

  async effects({ trace: id, site }: Required<AskEffects>): Promise<Effects> {
    this.found(id);
    return {
      effects: Array.from({ length: HEADS }, (_, head) => {
        const kl = chance(hash(site) + head) ** 3;
        return { head, change: -kl * 1.4, kl };
      }),
    };
  }

  async stream({ trace: id, side }: Required<AskStream>): Promise<Stream> {
    const n = this.found(id).meta.sides[side]!.tokens.length;
    return {
      rows: streamNames(side).map((name, depth) => ({
        name,
        norm: Array.from({ length: n }, (_, place) => 4 + depth * 1.3 + chance(depth * 31 + place)),
        cosine: Array.from({ length: n }, (_, place) => Math.max(0.1, 1 - depth * 0.06 - 0.05 * chance(depth + place))),
      })),
    };
  }

  async spaces({ trace: id, site: name, head, places }: Required<AskSpaces>): Promise<Spaces> {
    const side = this.found(id).meta.sites.find((site) => site.name === name)!.query_side;
    const tokens = places.map((place) => this.found(id).meta.sides[side]!.tokens[place]);
    const table = (seed: number): number[][] =>
      places.map((row) => places.map((column) => 2 * chance(seed + head + row * 31 + column * 7) - 1));
    return {
      places: [...places],
      tokens,
      embedding: table(1),
      query_key: table(2),
      score: table(2).map((row) => row.map((cosine) => 9 * cosine)),
      value: table(3),
    };
  }

  async sequence(): Promise<Sequence> {
    return { svg: "<svg viewBox='0 0 200 40'><text x='8' y='24'>only a server draws this</text></svg>" };
  }

  async sentence({ token = 0 }: AskSentence): Promise<Sentence> {
    return { tokens: ["a", "fluffy", "blue", "cute", "creature"], token, ...(await this.sequence()) };
  }

  async box({ trace: id, ...request }: Required<AskBox>): Promise<BoxNumbers> {
    const [side] = request.box.split(".") as [SideName];
    const box = boxesOfSide(side, LAYERS, branchesOf(side), true).find((one) => one.name === request.box);
    if (box === undefined) throw new SourceError(`There is no box called ${request.box}.`, 400);
    const tokens = this.found(id).meta.sides[side]!.tokens.length;
    const names = box.values.flatMap((value) => [...Object.values(value.operands), value.of, value.name]);
    const width = (name: string): number => {
      if (/\.(mean|variance)$/.test(name)) return 1;
      if (/\.(score|scaled|masked|weight)$/.test(name)) return tokens;
      return /\.(query|key|value|context)$/.test(name) ? D : D_MODEL;
    };
    const numbers = (name: string): number[] => noise(hash(name) + request.token + request.head * 7, width(name));
    const known = names.filter((name) => name !== "").map((name) => [name, numbers(name)]);
    return { values: Object.fromEntries(known), constants: { scale: D ** -0.5 }, labels: { "3": " four" } };
  }

  async terms({ ...request }: Required<AskTerms>): Promise<BoxTerms> {
    const [x, weight] = [noise(request.unit, D_MODEL), noise(request.unit + 1, D_MODEL)];
    return { x, weight, bias: 0.1, start: 0, value: x.reduce((sum, one, i) => sum + one * weight[i], 0.1) };
  }

  async context(request: AskContext): Promise<ContextAnswer> {
    const layers = ["embedding", "0", "1"];
    const places = request.texts.map((text) => {
      const tokens = text.split(" ");
      return { text, tokens, places: tokens.flatMap((token, index) => (token.includes(request.word) ? [index] : [])) };
    });
    const n = request.texts.length;
    const path = places.map((_, i) =>
      layers.map((_, depth): [number, number] => [
        depth * 1.2 + (depth ? chance(i + depth * 5) - 0.5 : 0),
        depth * (chance(i * 3 + depth) * 3 - 1.5),
      ]),
    );
    return {
      word: request.word,
      places,
      layers,
      cosine: layers.map((_, depth) =>
        Array.from({ length: n }, (_, i) =>
          Array.from({ length: n }, (_, j) =>
            i === j ? 1 : 1 - depth * 0.22 * (0.5 + chance(Math.min(i, j) * 9 + Math.max(i, j))),
          ),
        ),
      ),
      path,
      responsible: places.map(({ tokens }, i) =>
        layers.map((_, depth) =>
          tokens
            .map((text, index) => ({ index, text, weight: chance(i * 11 + index + depth) / tokens.length }))
            .sort((a, b) => b.weight - a.weight)
            .slice(0, 5),
        ),
      ),
    };
  }

  async positions({ n }: Required<AskPositions>): Promise<Positions> {
    const sinusoid = Array.from({ length: n }, (_, place) =>
      Array.from({ length: D_MODEL }, (_, d) => {
        const angle = place / 10000 ** ((2 * Math.floor(d / 2)) / D_MODEL);
        return d % 2 ? Math.cos(angle) : Math.sin(angle);
      }),
    );
    const learned = Array.from({ length: n }, (_, place) => noise(place + 77, D_MODEL).map((v) => v * 0.3));
    const along = (table: number[][]): number[] => table.map((row) => cosine(table[0], row));
    return {
      bias: null,
      used: "sinusoidal",
      kinds: [
        {
          name: "sinusoidal",
          title: "Sinusoidal",
          sentence: "Every position has its own pattern of sines and cosines.",
          used: true,
          trained: false,
          table: sinusoid,
          similarity: along(sinusoid),
          note: "Computed once.",
        },
        {
          name: "learned",
          title: "Learned",
          sentence: "Every position has a vector of its own.",
          used: false,
          trained: false,
          table: learned,
          similarity: along(learned),
          note: "As it starts: untrained.",
        },
        {
          name: "rotary",
          title: "Rotary",
          sentence: "Nothing is added: query and key are turned.",
          used: false,
          trained: false,
          table: null,
          similarity: along(sinusoid).map((v, i) => v * Math.cos(i / 9)),
          note: "Turns query and key.",
        },
      ],
    };
  }

  async decode(request: Required<AskDecode>): Promise<Decoded> {
    if (request.source.trim() === "") throw new SourceError("The source is empty: type a text to decode.", 400);
    const nodes: DecodeNode[] = [];
    const add = (
      parent: number | null,
      step: number,
      text: string,
      log_prob: number,
      state: DecodeNode["state"],
      rank: number,
    ): number => {
      const total = log_prob + (parent === null ? 0 : nodes[parent].total);
      nodes.push({
        id: nodes.length,
        parent,
        step,
        token: hash16(text),
        text,
        log_prob,
        total,
        state,
        rank,
        candidates: guesses(text, step, 0.9).slice(0, request.candidates),
      });
      return nodes.length - 1;
    };
    const best = [add(null, 0, "", 0, "best", 0)];
    let others: number[] = [];
    ANSWER.forEach((text, index) => {
      const parent = best.at(-1)!;
      const parents = [parent, ...others];
      best.push(add(parent, index + 1, text, -0.05 - chance(index) * 0.1, "best", 0));
      others = [];
      for (let rank = 1; rank < request.beam; rank++) {
        const live = chance(index * 13 + rank) > 0.35 && index < ANSWER.length - 1;
        const id = add(
          parents[rank % parents.length],
          index + 1,
          TARGET[(index * 3 + rank) % 10],
          -1.2 - rank * 0.5,
          live ? "live" : "pruned",
          rank,
        );
        if (live) others.push(id);
      }
    });
    return {
      nodes,
      best,
      outputs: [
        { text: "twenty-four thousand three hundred forty-two", score: -0.42, ids: ANSWER.map(hash16), ended: true },
      ],
      edits: [],
      source_tokens: SOURCE,
      cross: ANSWER.map((_, step) => ({
        step: step + 1,
        weight: Array.from({ length: LAYERS }, () => {
          const row = SOURCE.map((_, key) => (key === ALIGNED[step] ? 0.7 : 0.3 / 9));
          return row;
        }),
      })),
    };
  }

  async curves({ after }: Required<AskCurves>): Promise<Curves> {
    const lines = Array.from({ length: 60 }, (_, index) => {
      const step = (index + 1) * 5;
      return {
        kind: "training",
        step,
        loss: 0.1 + 5 * Math.exp(-step / 60) + 0.1 * chance(index),
        rate: 1e-3,
        tokens_per_second: 21000,
      };
    });
    const evaluations = [50, 100, 150, 200, 250, 300].map((step) => ({
      kind: "evaluation",
      step,
      loss: 0.1 + 4.5 * Math.exp(-step / 60),
      exact: 1 - Math.exp(-step / 70),
    }));
    return { lines: [...lines, ...evaluations].filter((line) => line.step > after), training: false, last: 300 };
  }

  private found(id: string): { meta: Meta; heads: Map<string, FakeHead> } {
    const found = this.traces.get(id);
    if (found === undefined) throw new SourceError("This trace is gone.", 410);
    return found;
  }

  private site(id: string, name: string): SiteMeta {
    const site = this.found(id).meta.sites.find((one) => one.name === name);
    if (site === undefined) throw new SourceError(`There is no site ${name}.`, 404);
    return site;
  }

  private head(id: string, site: string, head: number): FakeHead {
    const { meta, heads } = this.found(id);
    const name = `${site} ${head}`;
    if (!heads.has(name)) heads.set(name, new FakeHead(this.site(id, site), head, meta));
    return heads.get(name)!;
  }

  private matrix(id: string, request: Required<AskTile>): Matrix {
    const { n_query, n_key } = this.site(id, request.site);
    const data = new Float32Array(n_query * n_key);
    const heads = request.head === "mean" ? Array.from({ length: HEADS }, (_, head) => head) : [request.head];
    for (const head of heads)
      for (let query = 0; query < n_query; query++) {
        const inputs = this.head(id, request.site, head).inputs(query);
        const row = request.step === "allowed" ? inputs.allowed.map(Number) : rowSteps(inputs)[request.step];
        row.forEach((value, key) => (data[query * n_key + key] += value / heads.length));
      }
    return { rows: n_query, columns: n_key, data };
  }
}

/** A head whose queries are made to look at a place: the word it stands for, the token before, itself, or all. */
class FakeHead {
  readonly queries: number[][];
  readonly keys: number[][];
  readonly values: number[][];
  private readonly weighting: Weighting;

  constructor(
    private readonly site: SiteMeta,
    head: number,
    meta: Meta,
  ) {
    const seed = hash(site.name) + head * 1000;
    this.keys = Array.from({ length: site.n_key }, (_, key) => noise(seed + key * 3, D));
    this.values = Array.from({ length: site.n_key }, (_, key) => noise(seed + 500 + key, D));
    this.queries = Array.from({ length: site.n_query }, (_, query) => {
      const looked = this.keys[lookedAt(site, head, query) % site.n_key];
      const strength = 0.35 + 0.75 * chance(seed + 7);
      return noise(seed + 900 + query, D).map((part, d) => part * 0.7 + looked[d] * strength);
    });
    const edit = meta.edits.find((one) => one.at === site.name && "weighting" in one);
    this.weighting =
      edit !== undefined && "weighting" in edit && edit.weighting === "argmax"
        ? { kind: "argmax", ties: "first", tolerance: 1e-5 }
        : { kind: "softmax", temperature: 1 };
  }

  inputs(query: number): RowInputs {
    return {
      blocked: -Infinity,
      query: this.queries[query],
      keys: this.keys,
      values: this.values,
      scale: D ** -0.5,
      weighting: this.weighting,
      allowed: this.keys.map((_, key) => !this.site.arithmetic.causal || key <= query),
    };
  }
}

function lookedAt(site: SiteMeta, head: number, query: number): number {
  if (site.slot === "cross") return head === 3 ? site.n_key - 1 : ALIGNED[(query + (head === 1 ? 9 : 0)) % 10];
  if (head === 0) return Math.max(0, query - 1);
  if (head === 1) return query;
  return head === 2 ? Math.max(0, query - 2) : 0;
}

/** A large head without rows of its own: a band along the diagonal and a few columns that all look at. */
function bigTile(site: SiteMeta, request: Required<AskTile>): Matrix {
  const pool = 2 ** request.level;
  const size = (n: number, at: number): number => Math.min(TILE, Math.ceil(n / pool) - at * TILE);
  const [rows, columns] = [size(site.n_query, request.row), size(site.n_key, request.column)];
  const data = new Float32Array(rows * columns);
  for (let y = 0; y < rows; y++)
    for (let x = 0; x < columns; x++) {
      const [query, key] = [(request.row * TILE + y) * pool, (request.column * TILE + x) * pool];
      const near = Math.exp(-Math.abs(query - key) / (40 * pool ** 0.3));
      data[y * columns + x] = Math.max(near * (0.5 + 0.5 * chance(query * 4099 + key)), key % 512 < pool ? 0.6 : 0);
    }
  return { rows, columns, data };
}

function streamNames(side: SideName): string[] {
  const slots = side === "decoder" ? ["attention", "cross", "feed_forward"] : ["attention", "feed_forward"];
  const layer = (n: number): string[] => slots.map((slot) => `${side}.${n}.${slot}.residual`);
  return [
    ...["token", "out"].map((part) => `${side}.embedding.${part}`),
    ...Array.from({ length: LAYERS }, (_, n) => layer(n)).flat(),
    `${side}.normed`,
  ];
}

function guesses(best: string, place: number, p: number): Candidate[] {
  const rest = [...new Set([...ANSWER, " and", " one", " million"])].filter((text) => text !== best);
  const made = [{ id: hash16(best), text: best, p }];
  let left = 1 - p;
  for (let index = 0; index < Math.min(19, rest.length); index++) {
    const share = left * (0.45 + 0.2 * chance(place + index));
    left -= share;
    made.push({ id: hash16(rest[(index + place) % rest.length]), text: rest[(index + place) % rest.length], p: share });
  }
  return made;
}

function spec(): SideSpec["layers"][number]["attention"] {
  return {
    n_heads: HEADS,
    n_kv_heads: HEADS,
    d_head: D,
    weighting: "Softmax()",
    similarity: "ScaledDot()",
    position: "NoPosition",
  };
}

function matrixOf(rows: number[][]): Matrix {
  return { rows: rows.length, columns: rows[0].length, data: Float32Array.from(rows.flat()) };
}

function noise(seed: number, count: number): number[] {
  const made = Array.from({ length: count }, (_, place) => {
    const [a, b] = [chance(seed * 131 + place * 2), chance(seed * 131 + place * 2 + 1)];
    return Math.sqrt(-2 * Math.log(a + 1e-9)) * Math.cos(2 * Math.PI * b);
  });
  const scale = (1.6 * Math.sqrt(count)) / length(made);
  return made.map((part) => part * scale);
}

/** Between 0 and 1, always the same for the same seed. */
function chance(seed: number): number {
  let x = Math.imul(Math.floor(seed) ^ 0x9e3779b9, 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return ((x ^ (x >>> 16)) >>> 0) / 2 ** 32;
}

function hash(text: string): number {
  let x = 2166136261;
  for (let index = 0; index < text.length; index++) x = Math.imul(x ^ text.charCodeAt(index), 16777619);
  return x >>> 0;
}

function hash16(text: string): number {
  return hash(text) % 412;
}

function wait(ms: number): Promise<void> {
  return new Promise((done) => setTimeout(done, ms));
}
