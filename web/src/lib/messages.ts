/** What the server answers. Written by `python -m tests.serve.write_messages`: change clearhead/serve/messages.py. */

export type SideName = "encoder" | "decoder";

export type Slot = "attention" | "cross";

export type ModelKind = "encoder" | "decoder" | "encoder-decoder";

export type WeightingKind = "softmax" | "kernelized" | "argmax" | "rows";

export type BoxKind = "token" | "position" | "norm" | "attention" | "cross" | "add" | "feed_forward" | "output";

export interface AttentionSpec {
  n_heads: number;
  n_kv_heads: number;
  d_head: number;
  weighting: string;
  similarity: string;
  position: string;
}

export interface LayerSpec {
  attention: AttentionSpec;
  cross?: AttentionSpec;
  feed_forward: string | null;
  arrangement: string;
}

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
  /** The number that changes nothing, around which the value is painted: 1 in gamma. */
  neutral: number;
}

/** A box of the model's picture, with every value that is made in it. */
export interface BoxSpec {
  name: string;
  kind: BoxKind;
  layer: number | null;
  values: BoxValue[];
}

export interface EmbeddingSpec {
  position: string | null;
  scaled: boolean;
}

export interface SideSpec {
  side: SideName;
  n_layers: number;
  d_model: number;
  layers: LayerSpec[];
  boxes: BoxSpec[];
  embedding: EmbeddingSpec;
}

export interface Example {
  source: string;
  target?: string;
}

export interface ProgramHead {
  site: string;
  head: number;
  words: string;
}

export interface ProgramUnit {
  words: string;
}

export interface ProgramLayer {
  side: SideName;
  layer: number;
  heads: ProgramHead[];
  units: number;
  network: ProgramUnit[];
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

/** The head that a page opens on. */
export interface Opening {
  site: string;
  head: number | "mean";
}

export interface Run {
  name: string;
  path: string;
  task: string;
  context: number;
  step: number;
  /** The steps whose checkpoints are kept. */
  steps: number[];
  /** The steps of the training's film: weights that are kept for the explorer alone. */
  film: number[];
  /** The name of a second run to compare it with, which is asked under b/api/. */
  beside?: string;
  kind: ModelKind;
  parameters: number;
  vocabulary: number;
  sides: SideSpec[];
  /** Whether a text has a target: none, one that the model writes, or one that continues the text. */
  target: "none" | "writes" | "continues";
  /** The place of a text whose answer is shown first. */
  place: "first" | "last" | "blank";
  fields: string[];
  labels?: string[];
  /** Texts to look at; a page opens on the first. */
  examples: Example[];
  /** What a page opens on; the model's picture where there is none. */
  opening?: Opening;
  training: boolean;
  /** Whether it was trained elsewhere: it has no steps of its own. */
  imported?: boolean;
  /** Views that would have nothing to show for this run, each with the reason. */
  absent?: Record<string, string>;
  /** What can be put in the place of a weighting, by name; a saved page has none. */
  weightings?: string[];
  /** Of a compiled program: what each direction of the residual stream is called. */
  directions?: string[];
  program?: Program;
}

/** How much a unit adds to the logit of an answer at a token. */
export interface UnitEffect {
  id: number;
  text: string;
  change: number;
}

/** A hidden unit of a feed-forward at one token. */
export interface NeuronUnit {
  unit: number;
  /** The values that make it, the last of them its activation, `hidden`. */
  steps: Record<string, number>;
  /** The length of the vector that it adds to the output: its activation times its output weights. */
  norm: number;
  /** How much of the output that vector is; all units and the bias make 1. */
  share: number;
  promotes: UnitEffect[];
  suppresses: UnitEffect[];
}

export interface Neurons {
  at: string;
  token: number;
  d_ff: number;
  /** Units whose activation is above 0. */
  active: number;
  /** The fewest units whose norms are half of all norms. */
  half: number;
  bias: number;
  units: NeuronUnit[];
  /** How the activation is made. */
  formula: string;
  /** Why no unit promotes an answer; "" where they do. */
  silent: string;
}

/** A table with a vector for every token. */
export interface TableFacts {
  /** "encoder.embedding", "decoder.embedding", or "output": the unembedding, where it is not the same table. */
  name: string;
  /** Whether the output reads the same table. */
  tied: boolean;
}

/** The vectors of all tokens along the two directions in which they differ most (PCA). */
export interface EmbeddingMap {
  table: string;
  tables: TableFacts[];
  d_model: number;
  /** The shares of the variance along the two directions. */
  explained: number[];
  points: [number, number][];
  tokens: string[];
}

export interface Neighbour {
  id: number;
  text: string;
  cosine: number;
}

export interface TableNeighbours {
  table: string;
  /** The length of the token's own vector. */
  length: number;
  near: Neighbour[];
}

/** The tokens whose vectors point most nearly the same way, in every table of the same vocabulary. */
export interface Neighbours {
  token: number;
  text: string;
  tables: TableNeighbours[];
}

/** A part of a token: a character or byte, or two parts that were merged. */
export interface MergePart {
  text: string;
  left: number | null;
  right: number | null;
  /** Which merge it is, in the order in which they were learned. */
  rank: number | null;
}

export interface TextToken {
  id: number;
  text: string;
  bytes: number[];
  start: number;
  /** From which character of the text to which. */
  stop: number;
  unknown: boolean;
  special: boolean;
  /** Its log-probability among the pieces of a Unigram tokeniser; null for other kinds. */
  score: number | null;
}

/** A text and its tokens, word by word. */
export interface TokenizedText {
  field: string;
  /** The fields of the run that have a tokeniser of their own. */
  fields: string[];
  text: string;
  words: TextToken[][];
  /** By the id of a token: its parts and how they were merged, itself last; not of every token. */
  trees: Record<string, MergePart[]>;
  /** How it cuts words: BPE, Unigram, WordPiece or WordLevel. */
  model: string;
  merges: number;
  vocabulary: number;
  lower: boolean;
  characters: number;
  n_bytes: number;
  tokens: number;
  unknown: number;
}

/** A change of one step of one site: a head off is {step: "context", head, times: 0}. */
export interface StepEdit {
  at: string;
  step: string;
  head?: number | null;
  query?: number | null;
  key?: number | null;
  unit?: number | null;
  to?: number | boolean | null;
  times?: number | null;
}

/** One weighting in place of another. */
export interface WeightingEdit {
  at: string;
  weighting: string;
}

export interface SideMeta {
  ids: number[];
  tokens: string[];
  n_layers: number;
  d_model: number;
}

/** What a reader calls the parts: "scaled dot product", "no positions", "causal mask". */
export interface PartWords {
  similarity: string;
  weighting: string;
  position: string;
  mask: string;
}

/** What the arithmetic of a site is, as its parts say it. */
export interface Arithmetic {
  /** How a weight is worked out: its share of the row's exponentials, or of its scores; all on the best key; or `rows`, any function of the row, of which nothing is known but what the part says of itself. */
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
  /** Whether its positions turn queries and keys before they are compared. */
  turns: boolean;
  /** Whether a key may be hidden from a query. */
  masks: boolean;
  causal: boolean;
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
  position: string;
  mask: string;
  words: PartWords;
  arithmetic: Arithmetic;
  scale: number[];
  kernel: string;
  /** Why the reference computed it and no kernel; "" where a kernel did. */
  why: string;
  edited: boolean;
}

export interface Candidate {
  id: number;
  text: string;
  p: number;
}

export interface ProgramAnswers {
  answers: string[];
  offset: number;
}

/** What a trace is of: its tokens, its attentions, and what the model answers. */
export interface Meta {
  id: string;
  source: string;
  target: string | null;
  edits: (StepEdit | WeightingEdit)[];
  step: number | null;
  notes: string[];
  kind: ModelKind;
  sides: Partial<Record<SideName, SideMeta>>;
  sites: SiteMeta[];
  names: string[];
  candidates: Candidate[][];
  answer: string;
  /** Of a compiled program: its answer at each token of the text, which begins at token `offset`. */
  program?: ProgramAnswers;
}

/** One query's numbers against every key; null stands for −∞. The mean of heads has only its weight. */
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
  temperature: number;
  /** What the weight is a share of `total` of; null in weightings that are no share. */
  exponential: number | null;
  total: number | null;
  weight: number;
  ties: number[];
  value: number[];
  share: number[];
  context: number[];
  /** How the positions turned query and key before they were compared; null where they did not. */
  turn: Turn | null;
  /** What the head reads of the query's vector: in sliced heads, its slice. */
  input: number[] | null;
  /** The place of the first of these numbers in the vector; null where the head reads all of it. */
  input_start: number | null;
  /** The key's value between V_down and V_up; null where values are not of low rank. */
  latent: number[] | null;
  n_query: number;
  n_key: number;
}

/** Of each head, means over its queries; null where there is no such key for any query. Entropy is in bits. */
export interface Readings {
  entropy: (number | null)[];
  distance: (number | null)[];
  first: (number | null)[];
  itself: (number | null)[];
  previous: (number | null)[];
  same: (number | null)[];
  induction: (number | null)[];
  /** What W_O makes of the head: how many times as long as its contexts is what it adds to the stream. */
  gain: (number | null)[];
}

export interface LensLayer {
  name: string;
  rows: Candidate[][];
}

export interface Lens {
  side: SideName;
  layers: LensLayer[];
}

export interface HeadEffect {
  head: number;
  change: number;
  kl: number;
}

export interface Effects {
  effects: HeadEffect[];
}

export interface StreamRow {
  name: string;
  norm: number[];
  cosine: number[];
}

/** How long each position's vector is along the stream, and its cosine with the embedding. */
export interface Stream {
  rows: StreamRow[];
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
export interface Sentence {
  svg: string;
  tokens: string[];
  token: number;
}

/** The numbers of a box for one token, by name; what its values follow from is among them. null stands for −∞. */
export interface BoxNumbers {
  values: Record<string, (number | null)[]>;
  /** Numbers of formulas that are no value of the trace: the scale of a head. */
  constants: Record<string, number>;
  /** What units of an output are called, the likeliest of them. */
  labels: Record<string, string>;
}

/** A number that a linear map makes: the sum of x · weight, and bias. */
export interface BoxTerms {
  x: number[];
  weight: number[];
  bias: number;
  value: number;
  /** The place of the first x: in sliced heads, where the head's slice begins. */
  start: number;
}

export interface ContextPlace {
  text: string;
  tokens: string[];
  places: number[];
}

export interface Attended {
  index: number;
  text: string;
  weight: number;
}

export interface ContextAnswer {
  word: string;
  places: ContextPlace[];
  layers: string[];
  cosine: number[][][];
  path: [number, number][][];
  responsible: Attended[][][];
}

export interface PositionKind {
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
}

export interface Positions {
  used: string;
  kinds: PositionKind[];
  /** What the position adds to the scores of each head of the first layer, from the furthest key before it on. */
  bias: number[][] | null;
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

export interface DecodeOutput {
  text: string;
  score: number;
  ids: number[];
  ended: boolean;
}

export interface CrossWeights {
  step: number;
  weight: number[][];
}

export interface Decoded {
  nodes: DecodeNode[];
  best: number[];
  outputs: DecodeOutput[];
  source_tokens: string[];
  cross: CrossWeights[] | null;
  edits: (StepEdit | WeightingEdit)[];
}

/** A token that could have come next: its probability, and the one it was drawn with. */
export interface SampleCandidate {
  id: number;
  text: string;
  p: number;
  /** After the temperature and the cuts; 0 where it was cut. */
  after: number;
  /** What cut it: top-k, top-p, or a rule that it may never come; "" where it could be drawn. */
  cut: "" | "top_k" | "top_p" | "never";
}

/** One token that was drawn, or taken as the likeliest, and what it was drawn from. */
export interface SampleStep {
  token: number;
  text: string;
  p: number;
  after: number;
  /** The random number in [0, 1): the token is the one in whose stretch of the probabilities it lies. */
  drawn: number | null;
  /** Where that stretch begins: the sum of the probabilities of all likelier tokens. */
  begins: number;
  /** The number of tokens that could be drawn. */
  left: number;
  candidates: SampleCandidate[];
}

/** Text that was sampled, token by token: the same as the library's for the same seed. */
export interface Sampled {
  steps: SampleStep[];
  text: string;
  /** After each step, how many characters of the text are certain. */
  ends: number[];
  ids: number[];
  ended: boolean;
  /** The most new tokens that there can be. */
  room: number;
  source_tokens: string[];
  cross: CrossWeights[] | null;
  edits: (StepEdit | WeightingEdit)[];
}

export interface CurveLine {
  kind: string;
  step: number;
  loss?: number | null;
  [more: string]: unknown;
}

export interface Curves {
  lines: CurveLine[];
  training: boolean;
  last: number | null;
}

/** What went wrong, in a sentence. */
export interface Problem {
  error: string;
}
