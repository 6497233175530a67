/** What a live page holds: a model as clearhead/serve/live_plan.py writes it, its texts, and where its weights lie. */

import type { Weighting } from "../lib/arithmetic";
import type { Curves, Positions, RunFacts, SideName, WeightingKind } from "../lib/source";

export interface Live {
  version: 1;
  run: RunFacts;
  plan: Partial<Record<SideName, SidePlan>>;
  task: TaskPlan;
  tokenizers: TokenizerPlan[];
  /** What can be put in the place of a weighting, by name. */
  weightings: Record<string, WeightingPlan & { similarity: SimilarityPlan }>;
  tensors: Record<string, TensorPlace>;
  /** What is said of positions; the page makes the tables itself. */
  positions: Positions;
  film: FilmPlan | null;
  /** The log of the training, of a long one fewer lines; a page of one text has none. */
  curves: Curves | null;
  dtype: "float32" | "float16";
}

/** Earlier steps of the training, whose weights are in the page too. */
export interface FilmPlan {
  /** How many steps the run's own film has. */
  of: number;
  /** The shapes of the tensors, in their order. */
  tensors: Record<string, number[]>;
  /** What of a step is not as in the run itself. */
  steps: ({ step: number; program?: ProgramPlan | null } & Partial<Pick<Live, "plan" | "positions">>)[];
}

export interface TensorPlace {
  shape: number[];
  dtype: "float32" | "float16";
  /** In bytes. */
  offset: number;
}

/** The name of a tensor. */
type Held = string;

export interface SidePlan {
  vocabulary: number;
  d_model: number;
  embedding: EmbeddingPlan;
  blocks: BranchPlan[][];
  norm: NormPlan | null;
  output: OutputPlan | null;
}

export interface EmbeddingPlan {
  table: Held;
  factor: number;
  position: PositionTable | null;
  segment: Held | null;
  norm: NormPlan | null;
}

/** `first` is the number of the first position; a token of the id `skips` takes none. */
export type PositionTable = { first: number; skips: number | null } & (
  { kind: "sinusoidal"; layout: "interleaved" | "halves"; base: number } | { kind: "learned"; table: Held }
);

export interface NormPlan {
  kind: "layer" | "rms";
  epsilon: number;
  gamma: Held;
  beta: Held | null;
}

export interface LinearPlan {
  weight: Held;
  bias: Held | null;
}

export interface HeadMapPlan extends LinearPlan {
  norm: NormPlan | null;
  /** How many numbers of its input each head reads; null: all. */
  slice: number | null;
  /** The two maps of values of low rank: V_down from the input, V_up from each head's latent values. */
  latent: { down: LinearPlan; up: LinearPlan } | null;
}

export interface BranchPlan {
  branch: "attention" | "cross" | "feed_forward";
  places: { box: "norm" | "branch" | "add"; out: string; module: string }[];
  norm: NormPlan | null;
  attention?: AttentionPlan;
  network?: NetworkPlan;
}

export interface NetworkPlan {
  activation: Activation;
  gate: LinearPlan | null;
  up: LinearPlan;
  down: LinearPlan;
}

export type Activation = "relu" | "silu" | "gelu exact" | "gelu tanh";

export interface AttentionPlan {
  n_heads: number;
  n_kv_heads: number;
  d_head: number;
  d_value: number;
  query: HeadMapPlan;
  key: HeadMapPlan;
  value: HeadMapPlan;
  output: LinearPlan | null;
  similarity: SimilarityPlan;
  weighting: WeightingPlan;
  position: PositionPlan;
  mask: MaskPlan & { name: string; words: string; masks: boolean; causal: boolean };
}

export interface WeightingPlan {
  arithmetic: Weighting;
  form: string;
  blocked: number | null;
  name: string;
  words: string;
  kind: WeightingKind;
  rule: string;
  temperature: number;
}

export interface SimilarityPlan {
  kind: "dot" | "cosine" | "additive" | "features" | "log features";
  /** Of each head; null in a swap: 1/√d_head. */
  scale: number[] | null;
  features?: "elu" | "relu" | "softmax" | "random";
  projection?: Held;
  factor?: number;
  /** The maps of additive similarity. */
  query?: Held;
  key?: Held;
  out?: Held;
  name: string;
  words: string;
  formula: string;
  prepared: string;
  scale_reason: string;
}

export interface PositionPlan {
  kind: "none" | "alibi" | "t5" | "rotary";
  table?: Held;
  buckets?: number;
  reach?: number;
  two_sided?: boolean;
  frequency?: number[];
  pairs?: [number, number][];
  name: string;
  words: string;
  biased: boolean;
  turns: boolean;
}

export interface MaskPlan {
  kind: "everything" | "causal" | "window" | "both" | "either" | "not";
  left?: number;
  right?: number;
  parts?: MaskPlan[];
}

export type OutputPlan =
  | {
      kind: "vocabulary";
      table: Held;
      bias: Held | null;
      factor: number;
      transform: (LinearPlan & { norm: NormPlan }) | null;
    }
  | {
      kind: "classes";
      pool: "first" | "last" | "mean";
      activation: "tanh" | "relu";
      hidden: LinearPlan | null;
      out: LinearPlan;
      wide: WidePlan | null;
    };

export interface WidePlan {
  buckets: number;
  shares: [number, number];
  tables: { order: number; slots: number[] | null; table: Held; square: Held }[];
  bias: Held;
}

export interface FramePlan {
  before: number[];
  after: number[];
  ends: number[];
  opening: number[];
  never: number[];
}

export interface TaskPlan {
  /** How a text becomes tokens. */
  reads: "translate" | "generate" | "fill" | "text" | "embed";
  name: string;
  target: RunFacts["target"];
  context: number;
  /** The most tokens of a text that are read. */
  longest: number;
  labels: string[];
  fields: string[];
  /** For each field, the number of its tokeniser. */
  tokenizer: number[];
  frames: Record<string, FramePlan>;
  opener: number[];
  blank: string;
  usual: { trace: number; decode: number };
  program: ProgramPlan | null;
}

export interface ProgramPlan {
  answers: string[];
  answer_ids: number[];
  numeric: boolean;
  threshold: number;
  offset: number;
  beside: number;
}

/** A component of a tokenizer.json. */
export interface Component {
  type: string;
  [field: string]: unknown;
}

export interface TokenizerPlan {
  normalizer: Component | null;
  pre_tokenizer: Component | null;
  model: Component;
  decoder: Component | null;
  added: { id: number; content: string; special: boolean; normalized: boolean }[];
  imported: boolean;
  /** Post-processors that take spaces out of the ranges of tokens. */
  trims: { add_prefix_space: boolean }[];
  special: number[];
  ids: { pad: number; unknown: number; start: number; end: number; mask: number };
  kind: string;
  lower: boolean;
  vocabulary: number;
}
