/** Runs made up for tests: their numbers come out of sines, and every answer is worked out from the same vectors. */

import { dot, weigh, type Weighed, type Weighting } from "../lib/arithmetic";
import {
  type Answering,
  type Answers,
  type AskBox,
  type AskCell,
  type AskColumn,
  type AskEffects,
  askOwn,
  type AskRow,
  type Asks,
  type AskSpaces,
  type AskStream,
  type AskTile,
  type AskTrace,
  type AskVectors,
  type Candidate,
  type Cell,
  type Matrix,
  type Meta,
  type QuestionName,
  type Row,
  type RunFacts,
  type SideName,
  type SiteMeta,
  type Source,
  type ViewName,
} from "../lib/source";

export type FakeKind = "translator" | "decoder" | "classifier" | "program" | "linear";

const D = 4;
export const ALL_VIEWS: ViewName[] = [
  "model",
  "heads",
  "head",
  "steps",
  "positions",
  "meaning",
  "decoding",
  "intervene",
];

function number(...parts: number[]): number {
  return 3 * Math.sin(parts.reduce((sum, part, at) => sum + (at + 1) * 7.3 * (part + 1), 0));
}

const WEIGHTINGS: Record<FakeKind, Weighting> = {
  translator: { kind: "softmax", temperature: 1 },
  decoder: { kind: "softmax", temperature: 1 },
  classifier: { kind: "softmax", temperature: 1 },
  program: { kind: "argmax", ties: "first", tolerance: 1e-5 },
  linear: { kind: "kernelized", normalised: true },
};

function siteOf(kind: FakeKind, name: string, n_query: number, n_key: number, causal: boolean): SiteMeta {
  const [side, layer, slot] = name.split(".");
  const weighting = WEIGHTINGS[kind].kind as "softmax" | "argmax" | "kernelized";
  const scale = kind === "program" || kind === "linear" ? 1 : 1 / Math.sqrt(D);
  const part = { similarity: "ScaledDot", weighting, position: "none", mask: causal ? "causal" : "none" };
  return {
    ...{ name, side: side as SideName, layer: Number(layer), slot: slot as SiteMeta["slot"], ...part, words: part },
    ...{ n_heads: kind === "program" ? 1 : 2, n_kv_heads: 2, d_head: D, d_value: D, n_query, n_key },
    ...{ query_side: side as SideName, key_side: slot === "cross" ? "encoder" : (side as SideName) },
    ...{ scale: [scale, scale], kernel: "reference", why: "", edited: false },
    arithmetic: {
      ...{ kind: weighting, rule: "", blocked: null, formula: "query · key", prepared: "{}", scale_reason: "" },
      ...{ biased: false, turns: kind === "decoder", masks: causal, causal },
    },
  };
}

/** A run, its trace of a text, and a source that answers with the numbers of both. */
export function fake(kind: FakeKind): { run: RunFacts; meta: Meta; source: Source } {
  const encoder = ["<s>", "red", "cat", "sees", "house"];
  const decoder = ["<s>", "rote", "Katze", "sieht"];
  const both = kind === "translator";
  const writes = both || kind === "decoder" || kind === "linear";
  const names: [SideName, string[]][] = both
    ? [
        ["encoder", encoder],
        ["decoder", decoder],
      ]
    : [[writes ? "decoder" : "encoder", encoder]];
  const sites = names.flatMap(([side, tokens]) =>
    [0, 1].flatMap((layer) => [
      siteOf(kind, `${side}.${layer}.attention`, tokens.length, tokens.length, side === "decoder"),
      ...(both && side === "decoder"
        ? [siteOf(kind, `${side}.${layer}.cross`, tokens.length, encoder.length, false)]
        : []),
    ]),
  );
  const answering = names[names.length - 1];
  const answers = kind === "classifier" ? 1 : answering[1].length;
  const candidates = Array.from({ length: answers }, (_, at): Candidate[] => [
    { id: at, text: answering[1][at], p: kind === "program" ? 1 : 0.9 - 0.1 * ((at * 3) % 5) },
    { id: 9, text: "blue", p: 0.05 },
  ]);
  const meta = {
    ...{
      id: "fake",
      source: "red cat",
      target: null,
      edits: [],
      step: 1,
      notes: [],
      names: [],
      sites,
      candidates,
      answer: "rote",
    },
    kind: both ? "encoder-decoder" : writes ? "decoder" : "encoder",
    sides: Object.fromEntries(
      names.map(([side, tokens]) => [
        side,
        { ids: tokens.map((_, at) => 40 + ((at * 7) % 11)), tokens, n_layers: 2, d_model: 8 },
      ]),
    ),
    ...(kind === "program" ? { program: { answers: ["red", "cat", "sees"], offset: 1 } } : {}),
  } as unknown as Meta;
  const run = {
    ...{
      name: kind,
      vocabulary: 99,
      target: both ? "writes" : writes ? "continues" : "none",
      examples: [],
      film: [],
      step: 1,
      fields: ["text"],
    },
    place: kind === "program" ? "blank" : writes ? "last" : "first",
    ...(kind === "classifier" ? { labels: ["good", "bad"] } : {}),
    ...(kind === "program"
      ? {
          program: { exact: true, layers: [{ heads: [{ site: "encoder.1.attention", head: 0, words: "select(…)" }] }] },
          directions: ["a"],
        }
      : {}),
    sides: names.map(([side]) => ({
      ...{ side, n_layers: 2, d_model: 8, layers: [{ feed_forward: "8 → 6 → 8" }, { feed_forward: "8 → 6 → 8" }] },
      embedding: { position: kind === "decoder" || kind === "linear" ? null : "Sinusoidal", scaled: false },
      boxes: [
        { name: `${side}.embedding.token`, kind: "token", layer: null, values: [] },
        ...(kind === "program" ? [] : [{ name: `${side}.0.attention.norm`, kind: "norm", layer: 0, values: [] }]),
        { name: `${side}.0.attention`, kind: "attention", layer: 0, values: [] },
        { name: `${side}.0.attention.add`, kind: "add", layer: 0, values: [] },
        {
          name: `${side}.0.feed_forward`,
          kind: "feed_forward",
          layer: 0,
          values: [{ name: `${side}.0.feed_forward.hidden` }],
        },
      ],
    })),
  } as unknown as RunFacts;
  return { run, meta, source: new FakeSource(kind, meta) as unknown as Source };
}

class FakeSource {
  constructor(
    private readonly kind: FakeKind,
    private readonly meta: Meta,
  ) {}

  ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    return askOwn(this as unknown as Answering, name, asked);
  }

  private vector(site: SiteMeta, head: number, role: number, at: number): number[] {
    const made = Array.from({ length: D }, (_, unit) => number(site.name.length + site.layer, head, role, at, unit));
    return this.kind === "linear" && role < 2 ? made.map(Math.abs) : made;
  }

  /** A query's row, from scores to a context. */
  private steps(name: string, head: number, query: number): Weighed & Omit<Row, "masked"> & { masked: number[] } {
    const site = this.meta.sites.find((one) => one.name === name)!;
    const keys = Array.from({ length: site.n_key }, (_, key) => key);
    const allowed = keys.map((key) => !site.arithmetic.causal || key <= query);
    const asks = this.vector(site, head, 0, query);
    const score = keys.map((key) => dot(asks, this.vector(site, head, 1, key)));
    const scaled = score.map((one) => one * site.scale[0]);
    const masked = scaled.map((one, key) => (allowed[key] ? one : this.kind === "linear" ? 0 : -Infinity));
    const weighed = weigh(WEIGHTINGS[this.kind], masked);
    const values = keys.map((key) => this.vector(site, head, 2, key));
    const context = asks.map((_, unit) => dot(weighed.weight, values.map((value) => value[unit]))); // prettier-ignore
    return { ...weighed, query: asks, score, scaled, masked, allowed, context };
  }

  async row({ site, head, query }: Required<AskRow>): Promise<Row> {
    const steps = this.steps(site, head as number, query);
    return { ...steps, masked: steps.masked.map((one) => (one === -Infinity ? null : one)) };
  }

  async column({ trace: id, site: name, head, key }: Required<AskColumn>): Promise<{ weight: number[] }> {
    const site = this.meta.sites.find((one) => one.name === name)!;
    const rows = await Promise.all(
      Array.from({ length: site.n_query }, (_, query) => this.row({ trace: id, site: name, head, query })),
    );
    return { weight: rows.map((row) => row.weight[key]) };
  }

  async cell({ site, head, query, key }: Required<AskCell>): Promise<Partial<Cell>> {
    const steps = this.steps(site, head, query);
    const [exponential, total] = [steps.exponential[key], steps.total];
    return { masked: steps.masked[key], exponential, total, weight: steps.weight[key], ties: [key] };
  }

  async tile({ trace: id, ...asked }: Required<AskTile>): Promise<Matrix> {
    const { n_query: rows, n_key: columns } = this.meta.sites.find((one) => one.name === asked.site)!;
    const all = await Promise.all(
      Array.from({ length: rows }, (_, query) => this.row({ trace: id, site: asked.site, head: asked.head, query })),
    );
    const numbers = all.flatMap((row) => (asked.step === "allowed" ? row.allowed!.map(Number) : row.weight));
    return { rows, columns, data: Float32Array.from(numbers) };
  }

  async vectors({ ...asked }: Required<AskVectors>): Promise<Matrix> {
    const site = this.meta.sites.find((one) => one.name === asked.site)!;
    const values = Array.from({ length: site.n_key }, (_, key) => this.vector(site, asked.head!, 2, key));
    return { rows: values.length, columns: D, data: Float32Array.from(values.flat()) };
  }

  async stream({ side }: Required<AskStream>): Promise<{ rows: { name: string; norm: number[]; cosine: number[] }[] }> {
    const tokens = this.meta.sides[side]!.tokens;
    const row = (at: number): { name: string; norm: number[]; cosine: number[] } => ({
      name: `row ${at}`,
      norm: tokens.map((_, token) => 2 + number(at, token)),
      cosine: tokens.map((_, token) => Math.cos(number(at, token))),
    });
    return { rows: [row(0), row(1)] };
  }

  async spaces({ site, places }: Required<AskSpaces>): Promise<unknown> {
    const tokens = this.meta.sides[site.split(".")[0] as SideName]!.tokens;
    const embedding = places.map((one) =>
      places.map((other) => (one === other ? 1 : Math.sin(one * other + one + other))),
    );
    const query_key = places.map((one) => places.map((other) => Math.sin(2 * one - 3 * other)));
    return { places, tokens: places.map((place) => tokens[place]), embedding, query_key };
  }

  async box({ ...asked }: Required<AskBox>): Promise<unknown> {
    const hidden = Array.from({ length: 6 }, (_, unit) => Math.max(0, number(asked.token, unit)));
    return { values: { [`${asked.box}.hidden`]: hidden }, constants: {}, labels: {} };
  }

  async trace(asked: AskTrace): Promise<Meta> {
    return { ...this.meta, edits: asked.edits ?? [], step: asked.step ?? 1 };
  }

  async lens(): Promise<unknown> {
    const [side, { tokens }] = Object.entries(this.meta.sides).at(-1)! as [SideName, { tokens: string[] }];
    const layers = [0, 1, 2].map((layer) => ({
      name: `${side}.${layer}`,
      rows: tokens.map((text, at) => [{ id: at > layer ? 99 : at, text, p: 0.5 }]),
    }));
    return { side, layers };
  }

  async effects({ site }: Required<AskEffects>): Promise<unknown> {
    return {
      effects: [0, 1].map((head) => ({
        head,
        change: -Math.abs(number(site.length, Number(site.split(".")[1]), head)),
        kl: 0,
      })),
    };
  }

  async decode(): Promise<unknown> {
    const nodes = [0, 1, 2, 3].map((id) => ({ id, parent: id === 0 ? null : id - 1, text: `t${id}`, log_prob: -id }));
    return { nodes, best: [0, 1, 2, 3] };
  }
}
