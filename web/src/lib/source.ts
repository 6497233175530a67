/** The types of everything a view can ask for, and the interface that both the server and the saved page answer. */

import type {
  BoxNumbers,
  BoxTerms,
  Cell,
  Column,
  ContextAnswer,
  Curves,
  Decoded,
  Effects,
  EmbeddingMap,
  Lens,
  Meta,
  Neighbours,
  Neurons,
  Positions,
  Readings,
  Row,
  Run,
  Sampled,
  Sentence,
  Sequence,
  SideName,
  Spaces,
  StepEdit,
  Stream,
  TokenizedText,
  WeightingEdit,
} from "./messages";

export type * from "./messages";

/** One head by its number, or the mean over the heads of a site. */
export type HeadChoice = number | "mean";
/** The steps of attention that are matrices of queries by keys; `allowed` is the mask: 1 where a key may be attended. */
export type MatrixStep = "score" | "scaled" | "masked" | "weight" | "allowed";
/** The steps that are one vector a token. */
export type VectorRole = "query" | "key" | "value" | "context";
export type Role = "query" | "key" | "value" | "weight" | "context";
export type ViewName =
  | "model"
  | "heads"
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
  | "sequence"
  | "neurons"
  | "embeddings"
  | "tokens";

export interface BoxRequest {
  box: string;
  token: number;
  key: number;
  head: number;
}

export interface TermsRequest {
  name: string;
  row: number;
  unit: number;
  head: number;
}

export type EditJson = StepEdit | WeightingEdit;

export interface TraceRequest {
  source: string;
  target?: string | number[] | null;
  edits?: EditJson[];
  step?: number | null;
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
  /** The attention rollout up to the site in the place of a head. */
  rollout?: 1;
}

/** Small pictures of all heads of a site, head by head, row by row: 254 × √weight; 255 where all keys are masked. */
export interface Thumbs {
  heads: number;
  rows: number;
  columns: number;
  data: Uint8Array;
}

export interface ContextRequest {
  texts: string[];
  word: string;
}

export interface DecodeRequest {
  source: string;
  beam: number;
  candidates: number;
  max_new?: number;
  edits?: EditJson[];
  step?: number | null;
}

export interface SampleRequest {
  source: string;
  mode: "greedy" | "sample";
  temperature?: number;
  top_k?: number | null;
  top_p?: number;
  seed?: number;
  candidates?: number;
  max_new?: number;
  edits?: EditJson[];
  step?: number | null;
}

export interface NeuronsRequest {
  /** The feed-forward: "decoder.0.feed_forward". */
  at: string;
  token: number;
  most: number;
  /** A unit that is wanted wherever it ranks. */
  unit?: number;
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
  /** True where it can be asked for the weights of every step that the run has kept. */
  readonly everyStep?: boolean;
  /** True where tiles can be asked for as the attention rollout. */
  readonly rollout?: boolean;
  /** The source of the second run, where `run` says that there is one. */
  other?(): Source;
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
  /** Of one site, or of all; of a long text from no more than `rows` of its queries, as all take long. */
  readings(id: string, site?: string, rows?: number): Promise<Record<string, Readings>>;
  lens(id: string): Promise<Lens>;
  effects(id: string, site: string): Promise<Effects>;
  stream(id: string, side: SideName): Promise<Stream>;
  spaces(id: string, site: string, head: number, places: readonly number[]): Promise<Spaces>;
  /** `columns`: how many lifelines there is room for. */
  sequence(id: string, site: string, head: number, query: number, columns: number): Promise<Sequence>;
  sentence(token: number): Promise<Sentence>;
  box(id: string, request: BoxRequest): Promise<BoxNumbers>;
  terms(id: string, request: TermsRequest): Promise<BoxTerms>;
  context(request: ContextRequest): Promise<ContextAnswer>;
  positions(n: number, step: number | null): Promise<Positions>;
  decode(request: DecodeRequest): Promise<Decoded>;
  curves(after: number): Promise<Curves>;
  sample(request: SampleRequest): Promise<Sampled>;
  neurons(id: string, request: NeuronsRequest): Promise<Neurons>;
  /** The map of a table; the first one's where none is named. */
  embeddings(table: string | null, step: number | null): Promise<EmbeddingMap>;
  neighbours(table: string, token: number, step: number | null): Promise<Neighbours>;
  /** A text's tokens, by the tokeniser of a field; of the first where none is named. */
  tokenize(text: string, field: string | null): Promise<TokenizedText>;
}
