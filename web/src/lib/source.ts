/** The types of everything a view can ask for, and the interface that both the server and the saved page answer. */

export type SideName = "encoder" | "decoder";
export type Slot = "attention" | "cross";
/** One head by its number, or the mean over the heads of a site. */
export type HeadChoice = number | "mean";
/** The steps of attention that are matrices of queries by keys; `allowed` is the mask: 1 where a key may be attended. */
export type MatrixStep = "score" | "scaled" | "masked" | "weight" | "allowed";
/** The steps that are one vector a token. */
export type VectorRole = "query" | "key" | "value" | "context";
export type Role = "query" | "key" | "value" | "weight" | "context";
export type ViewName =
  | "model"
  | "head"
  | "steps"
  | "similarity"
  | "context"
  | "positions"
  | "decoding"
  | "intervene"
  | "training"
  | "design"
  | "spaces"
  | "sequence";

export interface AttentionSpec {
  n_heads: number;
  n_kv_heads: number;
  d_head: number;
  weighting: string;
  similarity: string;
  position: string | null;
}

export interface LayerSpec {
  attention: AttentionSpec;
  cross?: AttentionSpec;
  feed_forward: string | null;
  arrangement: string;
}

export type BoxKind = "token" | "position" | "norm" | "attention" | "cross" | "add" | "feed_forward" | "output";

/** A named value that is made in a box, and how it follows from others. */
export interface BoxValue {
  /** Its name in the trace: "encoder.0.feed_forward.hidden". */
  name: string;
  /** In words, or with its operands in braces: "{gamma} · {normalized} + {beta}". */
  formula: string;
  /** From what stands in braces to the name of that value. */
  operands: Record<string, string>;
  /** The linear map that makes it of the value `of`; "" where none does. */
  map: string;
  of: string;
  /** What its rows are; "none": one for all tokens, "whole": one made of all of them. */
  rows: "query" | "key" | "none" | "whole";
  columns: "unit" | "key";
  per_head: boolean;
}

/** A box of the model's picture, with every value that is made in it. */
export interface BoxSpec {
  name: string;
  kind: BoxKind;
  layer: number | null;
  values: BoxValue[];
}

export interface BoxRequest {
  box: string;
  token: number;
  key: number;
  head: number;
}

/** The numbers of a box for one token, by name; what its values follow from is among them. null stands for −inf. */
export interface BoxNumbers {
  values: Record<string, (number | null)[]>;
  /** Numbers of formulas that are no value of the trace: the scale of a head. */
  constants: Record<string, number>;
  /** What units of an output are called, the likeliest of them. */
  labels: Record<string, string>;
}

export interface TermsRequest {
  name: string;
  row: number;
  unit: number;
  head: number;
}

/** A number that a linear map makes: the sum of x · weight, and bias. */
export interface BoxTerms {
  x: number[];
  weight: number[];
  bias: number;
  value: number;
}

export interface SideSpec {
  side: SideName;
  n_layers: number;
  d_model: number;
  layers: LayerSpec[];
  boxes: BoxSpec[];
  embedding: { position: string | null; scaled: boolean };
}

export interface Example {
  source: string;
  target?: string;
}

export interface Run {
  name: string;
  path: string;
  task: "translate" | "generate" | "fill" | "classify" | (string & {});
  step: number;
  steps: number[];
  kind: "encoder" | "decoder" | "encoder-decoder";
  parameters: number;
  vocabulary: number;
  sides: SideSpec[];
  fields: string[];
  labels?: string[];
  examples: Example[];
  /** What can be put in the place of a weighting, by name; a saved page has none. */
  weightings?: string[];
  training: boolean;
  /** Views that would have nothing to show for this run, each with the reason. */
  absent?: Partial<Record<ViewName, string>>;
  /** Of a compiled program: what each direction of the residual stream is called. */
  directions?: string[];
  program?: Program;
}

/** The program that was compiled into a run. */
export interface Program {
  name: string;
  about: string;
  /** The program, a line for each sequence it computes. */
  listing: string[];
  layers: ProgramLayer[];
  /** Whether the weights are still those that were compiled. */
  exact: boolean;
}

export interface ProgramLayer {
  side: SideName;
  layer: number;
  heads: { site: string; head: number; words: string }[];
  units: number;
  network: { words: string }[];
}

/** A change of one step of one site: a head off is {step: "context", head, times: 0}. */
export interface StepEdit {
  at: string;
  step: string;
  head?: number | null;
  query?: number | null;
  key?: number | null;
  to?: number | boolean | null;
  times?: number | null;
}

/** One weighting in place of another. */
export interface WeightingEdit {
  at: string;
  weighting: string;
}

export type EditJson = StepEdit | WeightingEdit;

export interface TraceRequest {
  source: string;
  target?: string | number[] | null;
  edits?: EditJson[];
  step?: number | null;
}

export interface SideMeta {
  ids: number[];
  tokens: string[];
  n_layers: number;
  d_model: number;
}

export interface SiteMeta {
  name: string;
  side: SideName;
  layer: number;
  slot: Slot;
  n_heads: number;
  n_kv_heads: number;
  d_head: number;
  d_value: number;
  n_query: number;
  n_key: number;
  query_side: SideName;
  key_side: SideName;
  similarity: string;
  weighting: string;
  position: string | null;
  mask: string | null;
  /** What a reader calls its parts: "scaled dot product", "no positions", "causal mask". */
  words: { similarity: string; weighting: string; position: string; mask: string };
  arithmetic: Arithmetic;
  scale: number[];
  kernel: string;
  why: string;
  edited: boolean;
}

/** A weight is its share of the row's exponentials, or of its scores; all of it is on the best key; or it is any function
 * of the row, of which the page knows nothing but what the part says of itself. */
export type WeightingKind = "softmax" | "kernelized" | "argmax" | "rows";

/** What the arithmetic of a site is, as the server says it. */
export interface Arithmetic {
  /** How its weights are worked out, as its weighting declares it. */
  kind: WeightingKind;
  /** What its weighting does, in a sentence of its own without a full stop. */
  rule: string;
  /** What stands in place of a score where the query may not attend; null is −∞. */
  blocked: number | null;
  /** How the score of a query and a key is made. */
  formula: string;
  /** What a query or key is called once prepared for that, "{}" standing for its name: "unit {}". */
  prepared: string;
  /** Why the scale is what it is, where it is not 1/√d_head. */
  scale_reason: string;
  /** Whether its positions add to the scaled scores. */
  biased: boolean;
  /** Whether its positions turn queries and keys before they meet. */
  turns: boolean;
  /** Whether a key may be hidden from a query. */
  masks: boolean;
  causal: boolean;
}

export interface Candidate {
  id: number;
  text: string | null;
  p: number;
}

export interface Meta {
  id: string;
  source: string;
  target: string | null;
  edits: EditJson[];
  step: number | null;
  notes: string[];
  kind: Run["kind"];
  sides: Partial<Record<SideName, SideMeta>>;
  sites: SiteMeta[];
  names: string[];
  candidates: Candidate[][];
  answer: string;
  /** Of a compiled program: its answer at each token of the text, which begins at token `offset`. */
  program?: { answers: string[]; offset: number };
}

/** A matrix of numbers, row by row. */
export interface Matrix {
  rows: number;
  columns: number;
  data: Float32Array;
}

export interface TileRequest {
  site: string;
  head: HeadChoice;
  step: MatrixStep;
  level: number;
  row: number;
  column: number;
}

/** Small pictures of all heads of a site, head by head, row by row: 254 × √weight; 255 where all keys are masked. */
export interface Thumbs {
  heads: number;
  rows: number;
  columns: number;
  data: Uint8Array;
}

/** One query's numbers against every key; null stands for −inf. The mean of heads has only its weight. */
export interface Row {
  query?: number[];
  score?: (number | null)[];
  scaled?: (number | null)[];
  masked?: (number | null)[];
  weight: number[];
  context?: number[];
  allowed?: boolean[];
}

export interface Column {
  weight: number[];
}

/** Every number of one cell's arithmetic. */
export interface Cell {
  kind: WeightingKind;
  query: number[];
  key: number[];
  products: number[];
  score: number | null;
  scale: number;
  scaled: number | null;
  bias: number | null;
  allowed: boolean;
  masked: number | null;
  highest: number | null;
  /** What softmax divides by before the exponential. */
  temperature?: number;
  /** What the weight is a share of `total` of; null in weightings that are no share. */
  exponential: number | null;
  total: number | null;
  weight: number;
  value: number[];
  share: number[];
  context: number[];
  ties: number[];
  input?: number[] | null;
  /** How the positions turned query and key before they met; null where they did not. */
  turn?: Turn | null;
  n_query: number;
  n_key: number;
}

/** A query and a key before their turn, and by how much each pair of their numbers is turned, in radians. */
export interface Turn {
  query: number[];
  key: number[];
  query_position: number;
  key_position: number;
  pairs: [number, number][];
  query_angles: number[];
  key_angles: number[];
}

/** Of each head, means over its queries; null where there is no such key for any query. Entropy is in bits. */
export interface Readings {
  entropy: (number | null)[];
  distance: (number | null)[];
  previous: (number | null)[];
  same: (number | null)[];
  induction: (number | null)[];
}

export interface Lens {
  side: SideName;
  layers: { name: string; rows: Candidate[][] }[];
}

export interface Effects {
  effects: { head: number; change: number; kl: number }[];
}

/** How long each position's vector is along the stream, and its cosine with the embedding. */
export interface Stream {
  rows: { name: string; norm: number[]; cosine: number[] }[];
}

/** Cosines of some tokens with each other in three spaces, and the head's scores; rows are queries, columns keys. */
export interface Spaces {
  places: number[];
  tokens: string[];
  embedding: number[][];
  query_key: number[][];
  score: number[][];
  value: number[][];
}

/** A sequence diagram of one attention step, as an SVG element. */
export interface Sequence {
  svg: string;
}

/** The same of the notes' sentence, whose head was set by hand. */
export interface Sentence extends Sequence {
  tokens: string[];
  token: number;
}

export interface ContextRequest {
  texts: string[];
  word: string;
}

export interface ContextAnswer {
  word: string;
  places: { text: string; tokens: string[]; places: number[] }[];
  layers: string[];
  cosine: number[][][];
  path: [number, number][][];
  responsible: { index: number; text: string; weight: number }[][][];
}

export interface Positions {
  used: string | null;
  kinds: {
    name: string;
    title: string;
    /** What the kind is. */
    sentence: string;
    /** What this run has of it. */
    note: string;
    /** Whether this run has it. */
    used: boolean;
    trained: boolean;
    table: number[][] | null;
    similarity: number[];
  }[];
}

export interface DecodeRequest {
  source: string;
  beam: number;
  candidates: number;
  max_new?: number;
  edits?: EditJson[];
  step?: number | null;
}

export interface DecodeNode {
  id: number;
  parent: number | null;
  step: number;
  token: number;
  text: string;
  log_prob: number;
  total: number;
  state: "live" | "pruned" | "ended" | "best";
  rank: number;
  candidates: Candidate[];
}

export interface Decoded {
  nodes: DecodeNode[];
  best: number[];
  outputs: { text: string; score: number; ids: number[] }[];
  source_tokens: string[];
  cross: { step: number; weight: number[][] }[] | null;
}

export interface CurveLine {
  kind: "training" | "evaluation" | (string & {});
  step: number;
  loss?: number;
  [measure: string]: unknown;
}

export interface Curves {
  lines: CurveLine[];
  training: boolean;
  last: number;
}

export type VectorRequest = { site: string; head: number; role: VectorRole } | { name: string };

/** What went wrong, in words fit for the page. */
export class SourceError extends Error {
  constructor(
    message: string,
    readonly status = 0,
  ) {
    super(message);
    this.name = "SourceError";
  }
}

/** Where numbers come from. `id` is the id of a Meta that `trace` has returned. */
export interface Source {
  /** The views this source has the numbers for. */
  readonly views: readonly ViewName[];
  /** What to open on, where the address says nothing. */
  readonly shown?: { site: string; head: HeadChoice };
  /** The same source, whose requests are aborted with the signal unless somebody else waits for them too. */
  during(signal: AbortSignal): Source;
  /** Whether every step of a site can be asked for; where not, there are only its weights. */
  exact(site: string): boolean;
  run(): Promise<Run>;
  trace(request: TraceRequest): Promise<Meta>;
  tile(id: string, request: TileRequest): Promise<Matrix>;
  thumbs(id: string, site: string): Promise<Thumbs>;
  row(id: string, site: string, head: HeadChoice, query: number): Promise<Row>;
  column(id: string, site: string, head: HeadChoice, key: number): Promise<Column>;
  cell(id: string, site: string, head: number, query: number, key: number): Promise<Cell>;
  vectors(id: string, request: VectorRequest): Promise<Matrix>;
  /** Of one site, or of all, which takes long for a long text. */
  readings(id: string, site?: string): Promise<Record<string, Readings>>;
  lens(id: string): Promise<Lens>;
  effects(id: string, site: string): Promise<Effects>;
  stream(id: string, side: SideName): Promise<Stream>;
  spaces(id: string, site: string, head: number, places: readonly number[]): Promise<Spaces>;
  sequence(id: string, site: string, head: number, query: number): Promise<Sequence>;
  sentence(token: number): Promise<Sentence>;
  box(id: string, request: BoxRequest): Promise<BoxNumbers>;
  terms(id: string, request: TermsRequest): Promise<BoxTerms>;
  context(request: ContextRequest): Promise<ContextAnswer>;
  positions(n: number): Promise<Positions>;
  decode(request: DecodeRequest): Promise<Decoded>;
  curves(after: number): Promise<Curves>;
}
