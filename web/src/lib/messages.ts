/** What the page asks, and what is answered. Written by `python -m tests.serve.write_messages` from the files of
 * clearhead/serve/questions: change those. */

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
export type WeightingEdit = { at: string; weighting: string };

export type EditJson = StepEdit | WeightingEdit;
export type HeadChoice = number | "mean";

/** The numbers of a box for one token, by name; what its values follow from is among them. null stands for −∞. */
export interface BoxNumbers {
  values: Record<string, (number | null)[]>;
  /** Numbers of formulas that are no value of the trace: the scale of a head. */
  constants: Record<string, number>;
  /** What units of an output are called, the likeliest of them. */
  labels: Record<string, string>;
}

/** Every number of a box for one token (and, of keys and values, one key) in one head, by name. */
export type AskBox = { trace: string; box: string; token?: number; key?: number; head?: number };

/** A number that a linear map makes: the sum of x · weight, and bias. */
export interface BoxTerms {
  x: number[];
  weight: number[];
  bias: number;
  value: number;
  /** The place of the first x: in sliced heads, where the head's slice begins. */
  start: number;
}

/** The sum of products that one number of the value `name` is. */
export type AskTerms = { trace: string; name: string; unit: number; row?: number; head?: number };

/** How much a unit adds to the logit of an answer at a token. */
export type UnitEffect = { id: number; text: string; change: number };

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

/** The units of the feed-forward `at` that add most at a token. */
export interface AskNeurons {
  trace: string;
  at: string;
  token?: number;
  most?: number;
  /** A unit that is wanted wherever it ranks. */
  unit?: number | null;
}

export type PartKind = "embedding" | "head" | "feed_forward" | "constant" | "output" | "edits";
export type NamedAnswer = { id: number; text: string };

/** What one part adds to the logit, or to the difference of two. */
export interface LogitPart {
  name: string;
  kind: PartKind;
  /** Of a head, its attention. */
  site: string | null;
  layer: number | null;
  head: number | null;
  value: number;
}

/** The parts sum to the total: the logit of the answer, less that of the other one. */
export interface LogitParts {
  side: SideName;
  place: number;
  answer: NamedAnswer;
  other: NamedAnswer | null;
  total: number;
  parts: LogitPart[];
}

/** What each part adds to the logit of `token`, less that of `other`; without one, of the likeliest answer. */
export interface AskAttribution {
  trace: string;
  /** A token of the side that answers; without it, the one the page looks at first. */
  place?: number | null;
  /** The number of an answer: a token, or a label. */
  token?: number | null;
  other?: number | null;
}

export type PatchKind = "layer" | "attention" | "feed_forward" | "head";

/** One row of the map: a number for each place of its side. */
export interface PatchRow {
  name: string;
  side: SideName;
  /** Of a head, its attention. */
  site: string | null;
  layer: number | null;
  head: number | null;
  /** The logit difference with each place patched. */
  patched: number[];
  /** The same as a share of the way from `before` to `source`. */
  recovered: (number | null)[];
}

export interface PatchRows {
  /** Where the two answers are compared. */
  place: number;
  token: NamedAnswer;
  other: NamedAnswer;
  /** The logit of `token` less that of `other` in the text as it is. */
  before: number;
  /** The same where the values are taken from. */
  source: number;
  /** What `at` may be, in the order of the forward pass: values, or attentions, whose heads are asked for together. */
  groups: string[];
  rows: PatchRow[];
}

/** A text run once for each place of a row, with that value as it is in the source; both are ids of traces. */
export interface AskPatch {
  text: string;
  source: string;
  /** 1: the source is a trace of the run beside. */
  beside?: number;
  /** What is patched: the stream after each layer, what attentions or feed-forwards add to it, or heads. */
  by?: PatchKind;
  /** One of the groups; without it, all of them. */
  at?: string | null;
  place?: number | null;
  token?: number | null;
  other?: number | null;
}

export type EdgeTruth = "alone" | "jointly" | "never";

export interface CircuitEdge {
  sender: string;
  receiver: string;
  /** By how much the metric changes if the edge is patched, as the method finds it. */
  score: number;
  /** The number of the first of `sizes` whose circuit has it; as many as there are sizes for an edge of none. */
  first: number;
  /** Of a compiled program: whether it can change an answer, by trying; `never` for what is not even read. */
  truth: EdgeTruth | null;
}

/** A circuit; one without nodes if no text was given to compare with, and none was found. */
export interface Circuit {
  against: string;
  /** The answer to the text, and the answer to the other one. */
  answers: string[];
  /** What is measured, in the text as it is; for programs the log-probability of its answers. */
  clean: number;
  other: number;
  /** Everything that writes into the residual stream or reads from it, in the order of the forward pass. */
  nodes: string[];
  of: number;
  edges: CircuitEdge[];
  sizes: number[];
  /** By size: how much of the difference is left if all other edges carry what they carry in the other text. */
  faithfulness: number[];
  /** By size: 1 less the faithfulness of all that is not in the circuit. */
  completeness: number[];
  /** How many edges can change an answer of the program. */
  true: number | null;
}

export type ChangedAnswer = { text: string; before: number; after: number };

export interface PatchedEdge {
  before: number;
  /** What is measured while this edge alone carries what it carries in the other text. */
  after: number;
  other: number;
  /** The likeliest answers, and their probabilities before and after; of a program its answers at each place. */
  answers: ChangedAnswer[];
}

/** The edges by which the model answers this text otherwise than the text `against`, the strongest first. */
export interface AskCircuit {
  trace: string;
  /** As long as this text, with another answer; without it one is looked for by changing a token. */
  against?: string | null;
  /** A name of `clearhead circuits bench`. */
  method?: string;
}

/** What becomes of the answer while one edge carries what it carries in the text `against`. */
export interface AskEdge {
  trace: string;
  against: string;
  /** As `sender -> receiver`. */
  edge: string;
}

export type NodeState = "live" | "pruned" | "ended" | "best";

export interface DecodeNode {
  id: number;
  parent: number | null;
  step: number;
  token: number;
  text: string;
  log_prob: number;
  total: number;
  state: NodeState;
  rank: number;
  candidates: Candidate[];
}

export type DecodeOutput = { text: string; score: number; ids: number[]; ended: boolean };
export type CrossWeights = { step: number; weight: number[][] };

export interface Decoded {
  nodes: DecodeNode[];
  best: number[];
  outputs: DecodeOutput[];
  source_tokens: string[];
  cross: CrossWeights[] | null;
  edits: EditJson[];
}

/** A search with a beam, step by step, and where its best output looked in the source. With edits it is the changed model that is searched with, and looked into. */
export interface AskDecode {
  source: string;
  beam?: number;
  candidates?: number;
  max_new?: number | null;
  step?: number | null;
  edits?: EditJson[];
}

export type Cut = "" | "top_k" | "top_p" | "never";

/** A token that could have come next: its probability, and the one it was drawn with. */
export interface SampleCandidate {
  id: number;
  text: string;
  p: number;
  /** After the temperature and the cuts; 0 where it was cut. */
  after: number;
  /** What cut it: top-k, top-p, or a rule that it may never come; "" where it could be drawn. */
  cut: Cut;
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
  edits: EditJson[];
}

/** A sampled output, or the likeliest token each time, and what each token was drawn from. With edits it is the changed model that is sampled. */
export interface AskSample {
  source: string;
  mode?: "greedy" | "sample";
  temperature?: number;
  top_k?: number | null;
  top_p?: number | null;
  seed?: number;
  candidates?: number;
  max_new?: number | null;
  step?: number | null;
  edits?: EditJson[];
}

/** A sequence diagram of one attention step, as an SVG element. */
export type Sequence = { svg: string };

/** One attention step as a sequence diagram; of at most `queries`, and `room` pixels wide if it can be. */
export type AskSequence = { trace: string; site: string; head: number; query: number; room?: number; queries?: number };

/** The diagram of a token of the sentence, as an SVG element. */
export type Sentence = { svg: string; tokens: string[]; token: number };

/** The sequence diagram of the notes' sentence. */
export type AskSentence = { token?: number };

export type Spoken = "en" | "de";

/** What an exercise asks, and its hints. */
export type Asked = { name: string; title: string; asked: string; hints: string[] };

export interface Puzzle {
  asked: Asked;
  alphabet: string;
  /** What may be chosen: by slot, the predicates, functions of one value and functions of two. */
  menus: Record<string, string[]>;
}

/** A head to design. It is tried on every sentence. */
export interface Goal {
  asked: Asked;
  roles: string[];
  /** Every word with every place where it stands: a vector of each is graded. */
  cases: [string, number][];
  sentences: string[][];
  causal: boolean;
  /** How many numbers the head gives each word; 0 if only its weights are graded. */
  outputs: number;
}

export interface PageExercises {
  puzzles: Puzzle[];
  /** By operation, what it takes: sequences, selectors, or names from a menu. */
  operations: Record<string, string[]>;
  /** How many lines a program may have. */
  most: number;
  goals: Goal[];
  slips: Asked[];
  mysteries: Puzzle[];
}

/** The exercises that can be solved in the page, in a language. */
export type AskExercises = { language?: Spoken };

export interface SlipStep {
  name: string;
  /** A matrix, or one for each head; null stands for −∞, and 1 and 0 for what may be attended to and may not. */
  heads: (number | null)[][][];
  /** What may be put in its place. */
  formulas: string[];
}

export type SlipSite = { at: string; steps: SlipStep[] };

/** Every number of a small model in which one step is computed wrongly, for one of its texts. */
export type SlipNumbers = { name: string; texts: string[]; tokens: string[]; sites: SlipSite[]; logits: number[][] };

/** The numbers of the model of the slip `name`, for one of its texts. */
export type AskSlip = { name: string; text?: number };

/** What a model whose program is not told does with short texts, and what its edges do. */
export interface MysteryModel {
  name: string;
  edges: string[];
  texts: string[];
  /** To each text, a value for each place. */
  answers: (string | null)[][];
  /** Answers to texts in which one edge carries another text's. */
  changed: (string | null)[][];
  /** An edge, a text, the other text, and what the answer changes to; whatever is not here changes nothing. */
  changes: [number, number, number, number][];
}

/** The answers of the model of the mystery `name`, and what each edge changes by itself. */
export type AskMystery = { name: string };

/** What is said of an answer. */
export interface GradedAnswer {
  name: string;
  /** right, not yet, empty or failed. */
  state: string;
  lines: string[];
  /** Of a head: the share of all weight that is where it should be. */
  credit: number | null;
  /** Of a program that is wrong: what each line computes for the shortest text that shows it. */
  computed: [string, string][];
}

/** Whether an answer to the exercise `name` is right: `lines` of a puzzle or mystery, `vectors` of a head, or a repair. */
export interface AskGrade {
  name: string;
  language?: Spoken;
  lines?: string[] | null;
  /** The edges of a mystery that are marked. */
  edges?: string[] | null;
  /** By role, a vector for each case of the goal. */
  vectors?: Record<string, number[][]>;
  at?: string | null;
  step?: string | null;
  /** The step of a slip's model that is wrong, and the formula that repairs it. */
  formula?: string | null;
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

/** Of one site, or of all; of a long text, from no more than `rows` queries. */
export type AskReadings = { trace: string; site?: string | null; rows?: number | null };

export type HeadEffect = { head: number; change: number; kl: number };
export type Effects = { effects: HeadEffect[] };

/** What the answers lose without each head of a site. */
export type AskEffects = { trace: string; site: string };

/** Cosines of some tokens with each other in three spaces, and the head's scores; rows are queries, columns keys. */
export interface Spaces {
  places: number[];
  tokens: string[];
  embedding: number[][];
  query_key: number[][];
  score: number[][];
  value: number[][];
}

/** How alike some tokens are as embeddings, as queries and keys, and as values. */
export type AskSpaces = { trace: string; site: string; head: number; places: number[] };

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

/** The first `n` positions of each kind. */
export type AskPositions = { n?: number; step?: number | null };

export type PythonLines = { python: string };

/** Lines of Python that give the numbers of `question`, asked with the fields `asked`; the last is an expression. */
export type AskPython = { question: string; asked?: Record<string, unknown> };

export type SideName = "encoder" | "decoder";
export type Slot = "attention" | "cross";
export type ModelKind = "encoder" | "decoder" | "encoder-decoder";
export type WeightingKind = "softmax" | "kernelized" | "argmax" | "rows";
export type BoxKind = "token" | "position" | "norm" | "attention" | "cross" | "add" | "feed_forward" | "output";

export interface AttentionFacts {
  n_heads: number;
  n_kv_heads: number;
  d_head: number;
  weighting: string;
  similarity: string;
  position: string;
}

export interface LayerSpec {
  attention: AttentionFacts;
  cross?: AttentionFacts;
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
export type BoxSpec = { name: string; kind: BoxKind; layer: number | null; values: BoxValue[] };

export type EmbeddingSpec = { position: string | null; scaled: boolean };

export interface SideSpec {
  side: SideName;
  n_layers: number;
  d_model: number;
  layers: LayerSpec[];
  boxes: BoxSpec[];
  embedding: EmbeddingSpec;
}

export type Example = { source: string; target?: string };
export type ProgramHead = { site: string; head: number; words: string };
export type ProgramUnit = { words: string };

export interface ProgramLayer {
  side: SideName;
  layer: number;
  heads: ProgramHead[];
  units: number;
  network: ProgramUnit[];
}

/** The program that was compiled into a run. */
export interface ProgramFacts {
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
  /** The output of the first example that a saved page shows, where it is not the model's own. */
  target?: string | number[];
}

export interface RunFacts {
  /** Of Clearhead: captions of figures have it. */
  version: string;
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
  program?: ProgramFacts;
}

/** What a run is. */
export type AskRun = Record<string, never>;

/** A line of the log. It holds more than is said here: the scores of its task. */
export type CurveLine = { kind: string; step: number; loss?: number | null; [more: string]: unknown };

export type Curves = { lines: CurveLine[]; training: boolean; last: number | null };

/** The lines of the log after a step. */
export type AskCurves = { after?: number };

export type StreamRow = { name: string; norm: number[]; cosine: number[] };

/** How long each position's vector is along the stream, and its cosine with the embedding. */
export type Stream = { rows: StreamRow[] };

/** The residual stream of a side, value by value. */
export type AskStream = { trace: string; side: SideName };

export type VectorRole = "query" | "key" | "value" | "context";

/** A row for each token: of a head (`site`, `head`, `role`), or of the stream (`name`). */
export interface AskVectors {
  trace: string;
  site?: string | null;
  head?: number | null;
  role?: VectorRole | null;
  name?: string | null;
}

export type LensLayer = { name: string; rows: Candidate[][] };
export type Lens = { side: SideName; layers: LensLayer[] };

/** What each layer would answer at each token. */
export type AskLens = { trace: string };

/** −log p of each token, in nats; null for a token that nothing predicts. */
export type Surprise = { side: SideName; surprise: (number | null)[] };

/** How unlikely each token of the side that answers was to the model. */
export type AskSurprise = { trace: string };

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

/** A text's tokens, by the tokeniser of a field; of the first where none is named. */
export type AskTokenize = { text: string; field?: string | null };

export type SideMeta = { ids: number[]; tokens: string[]; n_layers: number; d_model: number };

/** What a reader calls the parts: "scaled dot product", "no positions", "causal mask". */
export type PartWords = { similarity: string; weighting: string; position: string; mask: string };

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

export type Candidate = { id: number; text: string; p: number };
export type ProgramAnswers = { answers: string[]; offset: number };

/** What a trace is of: its tokens, its attentions, and what the model answers. */
export interface Meta {
  id: string;
  source: string;
  target: string | null;
  edits: EditJson[];
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

/** A trace of a text, with edits inside the model, by the weights of a step: the run's own where none is named. */
export interface AskTrace {
  source: string;
  /** The output, as text or ids; without it, the model's own. */
  target?: string | number[] | null;
  edits?: EditJson[];
  step?: number | null;
}

/** null stands for −∞. The mean of heads has only its weight. */
export interface Row {
  query?: number[];
  score?: (number | null)[];
  scaled?: (number | null)[];
  masked?: (number | null)[];
  weight: number[];
  context?: number[];
  allowed?: boolean[];
}

/** One query's numbers against every key, of one head or of the mean. */
export type AskRow = { trace: string; site: string; head: HeadChoice; query: number };

export type Column = { weight: number[] };

/** The weights of one key, query by query. */
export type AskColumn = { trace: string; site: string; head: HeadChoice; key: number };

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

/** Every number of one cell's arithmetic. */
export type AskCell = { trace: string; site: string; head: number; query: number; key: number };

export type MatrixStep = "score" | "scaled" | "masked" | "weight" | "weighted" | "allowed";

/** The largest of each 2^level x 2^level cells; of the mean, the mean of the heads' tiles. */
export interface AskTile {
  trace: string;
  site: string;
  head?: HeadChoice;
  /** `weighted` is ‖w · v · W_O‖, how long a vector a key adds; `allowed` the mask: 1 where a key may be attended. */
  step: MatrixStep;
  level?: number;
  row?: number;
  column?: number;
  /** 1: the attention rollout up to the site, in the place of a head. */
  rollout?: number;
}

/** Head by head, row by row: 254 × √weight; 255 where all keys are masked. With `weighted` it is ‖w · v · W_O‖ in place of the weight, as a share of the largest of all heads. */
export type AskThumbs = { trace: string; site: string; weighted?: number };

export type Neighbour = { id: number; text: string; cosine: number; vector: number[] };

export interface TableNeighbours {
  table: string;
  /** The length of the token's own vector. */
  length: number;
  near: Neighbour[];
}

/** The tokens whose vectors point most nearly the same way, in every table of the same vocabulary. */
export type Neighbours = { token: number; text: string; tables: TableNeighbours[] };

/** The nearest tokens by the cosine of their vectors, in this and in other tables of the same tokens. */
export type AskNeighbours = { table: string; token: number; count?: number; step?: number | null };

export type ContextPlace = { text: string; tokens: string[]; places: number[] };
export type Attended = { index: number; text: string; weight: number };

export interface ContextAnswer {
  word: string;
  places: ContextPlace[];
  layers: string[];
  cosine: number[][][];
  path: [number, number][][];
  responsible: Attended[][][];
}

/** The vectors of one word in several texts. */
export type AskContext = { texts: string[]; word: string; step?: number | null };

/** A wrong program that is known, by what it gives. */
export interface KnownMistake {
  said: string;
  /** To each text, a value for each place; null where it stops. */
  rows: (unknown[] | null)[];
  edges: string[] | null;
}

/** What is right for every text, the shortest first; of a mystery, its true edges and its model too. */
export interface ProgramKey {
  texts: string[];
  expected: unknown[][];
  mistakes: KnownMistake[];
  truth: string[] | null;
  model: MysteryModel | null;
}

export interface DesignKey {
  /** By sentence and place, where the query should look; null if anywhere. */
  targets: (number[] | null)[][];
  /** What the head should give there; null if only its weights are graded. */
  results: number[][][] | null;
}

export interface SlipKey {
  /** For each text. */
  numbers: SlipNumbers[];
  /** By place, step and formula, all there are. */
  verdicts: Record<string, GradedAnswer>;
}

export interface AnswerKey {
  exercises: PageExercises;
  /** Sentences of verdicts, with names in braces. */
  said: Record<string, string>;
  /** The share of the weight from which a head is right. */
  enough: number;
  programs: Record<string, ProgramKey>;
  designs: Record<string, DesignKey>;
  slips: Record<string, SlipKey>;
}

/** Row by row. */
export interface Matrix {
  rows: number;
  columns: number;
  data: Float32Array;
}

/** Head by head, row by row. */
export interface Thumbs {
  heads: number;
  rows: number;
  columns: number;
  data: Uint8Array;
}

export interface Questions {
  box: { asks: AskBox; answers: BoxNumbers };
  terms: { asks: AskTerms; answers: BoxTerms };
  neurons: { asks: AskNeurons; answers: Neurons };
  attribution: { asks: AskAttribution; answers: LogitParts };
  patch: { asks: AskPatch; answers: PatchRows };
  circuit: { asks: AskCircuit; answers: Circuit };
  edge: { asks: AskEdge; answers: PatchedEdge };
  decode: { asks: AskDecode; answers: Decoded };
  sample: { asks: AskSample; answers: Sampled };
  sequence: { asks: AskSequence; answers: Sequence };
  sentence: { asks: AskSentence; answers: Sentence };
  exercises: { asks: AskExercises; answers: PageExercises };
  slip: { asks: AskSlip; answers: SlipNumbers };
  mystery: { asks: AskMystery; answers: MysteryModel };
  grade: { asks: AskGrade; answers: GradedAnswer };
  readings: { asks: AskReadings; answers: Record<string, Readings> };
  effects: { asks: AskEffects; answers: Effects };
  spaces: { asks: AskSpaces; answers: Spaces };
  positions: { asks: AskPositions; answers: Positions };
  python: { asks: AskPython; answers: PythonLines };
  run: { asks: AskRun; answers: RunFacts };
  curves: { asks: AskCurves; answers: Curves };
  stream: { asks: AskStream; answers: Stream };
  vectors: { asks: AskVectors; answers: Matrix };
  lens: { asks: AskLens; answers: Lens };
  surprise: { asks: AskSurprise; answers: Surprise };
  tokenize: { asks: AskTokenize; answers: TokenizedText };
  trace: { asks: AskTrace; answers: Meta };
  row: { asks: AskRow; answers: Row };
  column: { asks: AskColumn; answers: Column };
  cell: { asks: AskCell; answers: Cell };
  tile: { asks: AskTile; answers: Matrix };
  thumbs: { asks: AskThumbs; answers: Thumbs };
  neighbours: { asks: AskNeighbours; answers: Neighbours };
  context: { asks: AskContext; answers: ContextAnswer };
}

/** How a question is asked and answered, if not by address and in JSON: with a body, or in numbers. */
export const FORMS: { readonly [name in keyof Questions]?: "sent" | "matrix" | "thumbs" } = {
  decode: "sent",
  sample: "sent",
  grade: "sent",
  python: "sent",
  vectors: "matrix",
  tokenize: "sent",
  trace: "sent",
  tile: "matrix",
  thumbs: "thumbs",
  context: "sent",
};
