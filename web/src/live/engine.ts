/** The engine of a live page: answers every question of the explorer, as clearhead/serve/explorer.py does. */

import { cosine, finite } from "../lib/arithmetic";
import { Cache } from "../lib/cache";
import {
  type Answering,
  type AskBox,
  type AskCell,
  type AskColumn,
  type AskContext,
  type AskCurves,
  type AskDecode,
  type AskEffects,
  type AskLens,
  type AskNeighbours,
  type AskNeurons,
  type AskPositions,
  type AskReadings,
  type AskRow,
  type AskSample,
  type AskSpaces,
  type AskStream,
  type AskTerms,
  type AskThumbs,
  type AskTile,
  type AskTokenize,
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
  type EditJson,
  type Effects,
  type HeadChoice,
  type Lens,
  type Matrix,
  type Meta,
  type Neighbours,
  type Neurons,
  type Positions,
  type Readings,
  type Row,
  type RunFacts,
  type Sampled,
  type SideName,
  SourceError,
  type Spaces,
  type Stream,
  type Thumbs,
  type TokenizedText,
} from "../lib/source";
import { MASKED, thumbByte } from "../lib/thumbs";
import { tileOf } from "../lib/tiles";
import { Changes, checkEdits } from "./changes";
import { contextView, occurrences, positionsOf } from "./contexts";
import { beamSearch, greedy, type Node, openSession, ROOT } from "./decode";
import { Model } from "./model";
import type { Film } from "./film";
import type { Live, ProgramPlan } from "./plan";
import { compareAnswers, readSite } from "./readings";
import type { Site } from "./site";
import { rollOut, valueNorms } from "./rollout";
import { sample } from "./sample";
import { neighboursOf } from "./tables";
import { continuation, type Decoding, Task } from "./task";
import { headVector, matrix, rowOf, type Tensor } from "./tensor";
import { tokenized } from "./tokenized";
import { boxesOf, tapNames, Trace } from "./trace";
import { unitsOf } from "./units";

const TRACES = 28;
/** Steps of the film whose weights are kept beside the run's own. */
const STEPS = 3;
/** Numbers in the matrices that are kept: 32 MB. */
const MOST_NUMBERS = 1 << 23;
const THUMB = 48;
const LENS = 5;
const MANY = 512;
const FEW = 5;
const LIKELIEST = 20;
const MOST_COMPARED = 24;
const MOST_TEXTS = 20;
const SHOWN = 30;
/** The most tokens that a text is continued by when it is sampled. */
const MOST_SAMPLED = 200;
const OWN_OUTPUT = "the target is its own greedy output";

/** The model with the weights of a step, and what depends on them. */
interface Loaded {
  step: number;
  model: Model;
  positions: Positions;
  program: ProgramPlan | null;
}

/** What a trace is of. */
interface Asked {
  source: string;
  target: string | number[] | null;
  edits: EditJson[];
}

interface Kept {
  trace: Trace;
  meta: Meta;
  known: Map<string, unknown>;
}

export class Engine implements Answering {
  private readonly own: Loaded;
  private readonly task: Task;
  private readonly steps = new Cache<Loaded>(STEPS);
  private readonly traces = new Cache<Kept>(TRACES);
  private readonly matrices = new Cache<Matrix>(MOST_NUMBERS);
  private readonly taps: Set<string>;

  constructor(
    private readonly live: Live,
    tensors: Map<string, Tensor>,
    private readonly film: Film | null = null,
  ) {
    const { plan, positions, run, task } = live;
    this.own = { step: run.step, model: new Model(plan, tensors), positions, program: task.program };
    this.task = new Task(live);
    const names = new Set(this.names);
    this.taps = new Set([...tapNames(this.own.model)].filter((name) => names.has(name)));
  }

  private get names(): string[] {
    return boxesOf(this.live.run).flatMap((box) => box.values.map((value) => value.name));
  }

  run(): RunFacts {
    return this.live.run;
  }

  async trace({ source, target = null, edits = [], step }: AskTrace): Promise<Meta> {
    return this.traced(await this.at(step), { source, target, edits }).meta;
  }

  private traced(at: Loaded, asked: Asked): Kept {
    const id = fingerprint(JSON.stringify([at.step, asked]));
    let found = this.traces.get(id);
    if (found === undefined) this.traces.set(id, (found = this.make(id, at, asked)));
    return found;
  }

  /** The model with the weights of a step of the film; its own where none is named. */
  private async at(step: number | null | undefined): Promise<Loaded> {
    const { own, film } = this;
    if (step === null || step === undefined || step === own.step) return own;
    const known = this.steps.get(String(step));
    if (known !== undefined) return known;
    const words = film?.find(step);
    if (film === null || words === undefined) {
      const steps = [...this.live.run.film, own.step].join(", ");
      throw new SourceError(`This page does not hold the weights of step ${step}; it holds those of ${steps}.`);
    }
    const { plan = this.live.plan, positions = own.positions, program = own.program } = words;
    const made = { step, model: new Model(plan, await film.weights(step)), positions, program };
    this.steps.set(String(step), made);
    return made;
  }

  private checkEdits(edits: EditJson[]): void {
    const sites = new Map(
      this.own.model.sides.flatMap((side) =>
        this.own.model
          .side(side)
          .blocks.flatMap((branches, number) =>
            branches.flatMap(({ branch, attention }) =>
              attention === undefined ? [] : [[`${side}.${number}.${branch}`, attention] as const],
            ),
          ),
      ),
    );
    const weightings = Object.keys(this.live.weightings);
    checkEdits(edits, { sites, taps: this.taps, names: this.names, weightings });
  }

  private make(id: string, at: Loaded, { source, target, edits }: Asked): Kept {
    const { model } = at;
    this.checkEdits(edits);
    let inputs = this.task.inputs(source, target);
    const notes: string[] = [];
    if (this.task.plan.target === "writes" && target === null) {
      const decoding = this.task.decoding(inputs, null, this.task.plan.usual.trace);
      const rules = edits.length > 0 ? { ...decoding, max_new: decoding.max_new - 1 } : decoding;
      inputs = this.task.withOutput(inputs, greedy(openSession(model, this.live, rules, edits), rules));
      notes.push(OWN_OUTPUT + (edits.length > 0 ? ", as changed" : ""));
    }
    this.checkReach(Math.max(...Object.values(inputs.ids).map((ids) => ids.length)));
    const trace = new Trace(model, this.live, inputs, edits);
    const meta = this.meta(id, at, { source, target, edits }, trace, [...notes, ...this.unseen(source)]);
    return { trace, meta, known: new Map() };
  }

  private checkReach(n: number): void {
    const { reach } = this.own.model;
    if (reach !== null && n > reach)
      throw new SourceError(`the text has ${n} tokens, and there are ${reach} learned positions; shorten it`);
  }

  private unseen(source: string): string[] {
    const found = Array.from(this.task.unseen(source));
    const more = found.length > SHOWN ? "…" : "";
    return found.length === 0
      ? []
      : [`never met in training, and read as unknown: ${found.slice(0, SHOWN).join("")}${more}`];
  }

  private meta(id: string, at: Loaded, { source, target }: Asked, trace: Trace, notes: string[]): Meta {
    const { model, program } = at;
    const candidates = trace.candidates().map((row) => this.withNames(row));
    const answers = programAnswers(program, trace);
    const own = answers === null || this.task.plan.target === "writes";
    return {
      id,
      source,
      target: this.task.target(target, trace),
      edits: trace.edits,
      step: at.step,
      notes,
      kind: this.live.run.kind,
      sides: Object.fromEntries(
        model.sides.map((side) => [
          side,
          {
            ids: trace.ids(side),
            tokens: trace.inputs.tokens[side]!,
            n_layers: model.side(side).blocks.length,
            d_model: model.side(side).d_model,
          },
        ]),
      ) as Meta["sides"],
      sites: [...trace.sites.values()].map((site) => site.meta()),
      names: this.names,
      candidates: candidates.length > MANY ? candidates.map((row) => row.slice(0, FEW)) : candidates,
      answer: own ? this.task.answer(source, trace, candidates) : answers.join(" "),
      ...(answers === null ? {} : { program: { answers, offset: program!.offset } }),
    };
  }

  private withNames(row: Omit<Candidate, "text">[]): Candidate[] {
    const names = this.task.answerNames(row.map(({ id }) => id));
    return row.map((one, place) => ({ id: one.id, text: names[place], p: one.p }));
  }

  private find(id: string): Kept {
    const found = this.traces.get(id);
    if (found === undefined) throw new SourceError("this trace is no longer kept: ask for it again", 410);
    return found;
  }

  private site(id: string, name: string): Site {
    const { trace } = this.find(id);
    const site = trace.sites.get(name);
    if (site === undefined)
      throw new SourceError(
        `there is no attention called ${name} in this trace; there are ${[...trace.sites.keys()].join(", ")}`,
      );
    return site;
  }

  private heads(site: Site, head: HeadChoice): number[] {
    if (head === "mean") return Array.from({ length: site.n_heads }, (_, each) => each);
    if (!(head >= 0 && head < site.n_heads))
      throw new SourceError(`${site.name}: there is no head ${head}; there are ${site.n_heads}, counted from 0`);
    return [head];
  }

  private once<Value>(id: string, name: string, make: () => Value): Value {
    const { known } = this.find(id);
    if (!known.has(name)) known.set(name, make());
    return known.get(name) as Value;
  }

  tile({
    trace: id,
    site: name,
    head: choice = "mean",
    step,
    level = 0,
    row = 0,
    column = 0,
    rollout,
  }: AskTile): Matrix {
    const site = this.site(id, name);
    const whole = rollout
      ? [this.rollout(id, site, step)]
      : this.heads(site, choice).map((head) => this.matrix(id, site, head, step));
    return meanOf(whole.map((one) => tileOf(one, level, row, column)));
  }

  private rollout(id: string, site: Site, step: AskTile["step"]): Matrix {
    if (step !== "weight" && step !== "allowed")
      throw new SourceError(`weights are rolled out, over the layers; there is no ${step} of a rollout`);
    const made = this.once(id, `rollout ${site.name}`, () =>
      rollOut(this.find(id).trace, site, (one, head) => this.matrix(id, one, head, "weight")),
    );
    return step === "weight" ? made : { ...made, data: made.data.map((one) => Number(one > 0)) };
  }

  private matrix(id: string, site: Site, head: number, step: AskTile["step"]): Matrix {
    const name = `${id} ${site.name} ${head} ${step}`;
    let found = this.matrices.get(name);
    if (found === undefined) {
      found = step === "weighted" ? this.weighted(id, site, head) : site.matrix(head, step);
      this.matrices.set(name, found, found.data.length);
    }
    return found;
  }

  /** How long a vector each key adds to the stream: ‖w · v · W_O‖. */
  private weighted(id: string, site: Site, head: number): Matrix {
    const weights = this.matrix(id, site, head, "weight");
    const norms = this.norms(id, site, head);
    return { ...weights, data: weights.data.map((one, cell) => Math.abs(one) * norms[cell % site.n_key]) };
  }

  private norms(id: string, site: Site, head: number): number[] {
    return this.once(id, `norms ${site.name} ${head}`, () => valueNorms(this.find(id).trace, site, head));
  }

  thumbs({ trace: id, site: name, weighted }: AskThumbs): Thumbs {
    return this.once(id, `thumbs ${name} ${weighted}`, () => {
      const site = this.site(id, name);
      const [height, width] = [Math.ceil(site.n_query / THUMB), Math.ceil(site.n_key / THUMB)];
      const [rows, columns] = [Math.ceil(site.n_query / height), Math.ceil(site.n_key / width)];
      const largest = new Float32Array(site.n_heads * rows * columns).fill(-Infinity);
      for (let head = 0; head < site.n_heads; head++) {
        const norms = weighted ? this.norms(id, site, head) : null;
        for (let query = 0; query < site.n_query; query++) {
          const { weight, allowed } = site.steps(head, query);
          for (let key = 0; key < site.n_key; key++) {
            if (!allowed[key]) continue;
            const place = (head * rows + Math.floor(query / height)) * columns + Math.floor(key / width);
            largest[place] = Math.max(largest[place], weight[key] * (norms?.[key] ?? 1));
          }
        }
      }
      const most = weighted ? largest.reduce((best, one) => Math.max(best, one), 1e-30) : 1;
      const data = Uint8Array.from(largest, (one) => (one === -Infinity ? MASKED : thumbByte(one / most)));
      return { heads: site.n_heads, rows, columns, data };
    });
  }

  row({ trace: id, site: name, head, query }: AskRow): Row {
    const site = this.site(id, name);
    this.checkPlace(site, "query", query, site.n_query);
    const heads = this.heads(site, head);
    if (head === "mean") return { weight: mean(heads.map((each) => site.weights(each, query))) };
    const { allowed, score, scaled, masked, weight } = site.steps(heads[0], query);
    return {
      query: Array.from(headVector(site.vectors.query, heads[0], query)),
      score: Array.from(score, finite),
      scaled: Array.from(scaled, finite),
      masked: Array.from(masked, finite),
      weight: Array.from(weight),
      context: Array.from(headVector(site.context, heads[0], query)),
      allowed: Array.from(allowed, (one) => one === 1),
    };
  }

  private checkPlace(site: Site, what: string, place: number, n: number): void {
    if (!(place >= 0 && place < n))
      throw new SourceError(`${site.name}: there is no ${what} ${place}; there are ${n}, counted from 0`);
  }

  column({ trace: id, site: name, head, key }: AskColumn): Column {
    const site = this.site(id, name);
    this.checkPlace(site, "key", key, site.n_key);
    const columns = this.heads(site, head).map((each) =>
      Array.from(
        { length: site.n_query },
        (_, query) => this.matrix(id, site, each, "weight").data[query * site.n_key + key],
      ),
    );
    return { weight: mean(columns) };
  }

  cell({ trace: id, site: name, head, query, key }: AskCell): Cell {
    const site = this.site(id, name);
    this.heads(site, head);
    this.checkPlace(site, "query", query, site.n_query);
    this.checkPlace(site, "key", key, site.n_key);
    return site.cell(head, query, key, this.find(id).trace.readBy(name, head, query, key));
  }

  vectors({ trace: id, name, site: at, head: choice, role }: AskVectors): Matrix {
    if (name) {
      const found = this.find(id).trace.stream.get(name);
      if (found === undefined) throw new SourceError(`there is no ${name} in this trace's stream`);
      return found;
    }
    const site = this.site(id, at!);
    const [head] = this.heads(site, choice!);
    const n = role === "query" || role === "context" ? site.n_query : site.n_key;
    const vector = (row: number): Float32Array =>
      role === "query"
        ? headVector(site.vectors.query, head, row)
        : role === "context"
          ? headVector(site.context, head, row)
          : site.shared(role!, head, row);
    const made = matrix(n, n === 0 ? 0 : vector(0).length);
    for (let row = 0; row < n; row++) made.data.set(vector(row), row * made.columns);
    return made;
  }

  readings({ trace: id, site: name, rows: most }: AskReadings): Record<string, Readings> {
    const { trace } = this.find(id);
    const sites = !name ? [...trace.sites.values()] : [this.site(id, name)];
    return Object.fromEntries(
      sites.map((site) => {
        const ids = site.name.endsWith(".cross") ? null : trace.ids(site.name.split(".")[0] as SideName);
        return [site.name, this.once(id, `readings ${site.name} ${most}`, () => readSite(site, ids, most ?? null))];
      }),
    );
  }

  lens({ trace: id }: AskLens): Lens {
    return this.once(id, "lens", () => {
      const { trace } = this.find(id);
      const layers = trace.lens(LENS).map(({ name, rows }) => ({ name, rows: rows.map((row) => this.withNames(row)) }));
      return { side: trace.answerSide, layers };
    });
  }

  effects({ trace: id, site: name }: AskEffects): Effects {
    return this.once(id, `effects ${name}`, () => {
      const { trace } = this.find(id);
      const site = this.site(id, name);
      const whole = trace.logits();
      const effects = this.heads(site, "mean").map((head) => {
        const off: EditJson = { at: name, step: "context", head, times: 0 };
        const without = new Trace(trace.model, this.live, trace.inputs, [...trace.edits, off]);
        return compareAnswers(head, whole, without.logits());
      });
      return { effects };
    });
  }

  stream({ trace: id, side }: AskStream): Stream {
    const { trace } = this.find(id);
    const embedding = trace.stream.get(`${side}.embedding.token`)!;
    const rows = [...trace.stream].filter(([name]) => name.startsWith(`${side}.`));
    return {
      rows: rows.map(([name, value]) => {
        const each = Array.from({ length: value.rows }, (_, row) => rowOf(value, row));
        return {
          name,
          norm: each.map((row) => Math.sqrt(row.reduce((sum, one) => sum + one * one, 0))),
          cosine: each.map((row, place) => cosine(row, rowOf(embedding, place))),
        };
      }),
    };
  }

  spaces({ trace: id, site: name, head, places }: AskSpaces): Spaces {
    const { trace } = this.find(id);
    const site = this.site(id, name);
    this.heads(site, head);
    if (name.endsWith(".cross"))
      throw new SourceError(
        `${name} attends from one text to another, so its tokens have queries or values, not both; choose a self-attention`,
      );
    if (places.length === 0 || places.length > MOST_COMPARED || places.some((place) => !(place < site.n_query)))
      throw new SourceError(`places: expected 1 to ${MOST_COMPARED} of them, each below ${site.n_query}`);
    const side = name.split(".")[0] as SideName;
    const table = (row: (place: number) => ArrayLike<number>, column = row): number[][] =>
      places.map((one) => places.map((other) => cosine(row(one), column(other))));
    const embedding = trace.stream.get(`${side}.embedding.token`)!;
    return {
      places: [...places],
      tokens: places.map((place) => trace.inputs.tokens[side]![place]),
      embedding: table((place) => rowOf(embedding, place)),
      query_key: table(
        (place) => headVector(site.vectors.query, head, place),
        (place) => site.shared("key", head, place),
      ),
      score: places.map((place) => places.map((key) => site.steps(head, place).score[key])),
      value: table((place) => site.shared("value", head, place)),
    };
  }

  box({ trace: id, box: name, token = 0, key = 0, head = 0 }: AskBox): BoxNumbers {
    const { trace } = this.find(id);
    const box = boxesOf(this.live.run).find((one) => one.name === name);
    if (box === undefined) throw new SourceError(`there is no box called ${name} in this model`);
    const read = box.values.flatMap((value) => Object.values(value.operands));
    const mapped = box.values.flatMap((value) => (value.of && value.rows === "query" ? [value.of] : []));
    const names = new Set([...read, ...mapped, ...box.values.map((value) => value.name)]);
    const values = Object.fromEntries(
      [...names].map((one) => {
        const row = trace.values.get(one)!.rows === "key" ? key : token;
        return [one, Array.from(trace.vector(one, row, head), finite)];
      }),
    );
    const probability = values[`${trace.answerSide}.output.probability`] as number[] | undefined;
    const scale = trace.sites.get(name)?.rows.scale[head];
    return { values, constants: scale === undefined ? {} : { scale }, labels: this.labels(probability) };
  }

  private labels(probability: number[] | undefined): Record<string, string> {
    if (probability === undefined) return {};
    const best = probability
      .map((p, id) => ({ id, p }))
      .sort((a, b) => b.p - a.p)
      .slice(0, LIKELIEST);
    return Object.fromEntries(this.withNames(best).map(({ id, text }) => [id, text]));
  }

  terms({ trace: id, name, row = 0, unit, head = 0 }: AskTerms): BoxTerms {
    const { trace } = this.find(id);
    const { x, weight, bias, start } = trace.terms(name, row, unit, head);
    const value = trace.vector(name, row, head)[unit];
    return { x: Array.from(x), weight: Array.from(weight), bias, value, start };
  }

  neurons({ token = 0, most = 20, ...rest }: AskNeurons): Neurons {
    const request = { ...rest, token, most };
    const { trace } = this.find(rest.trace);
    const side = request.at.split(".")[0] as SideName;
    if (!(request.token < (trace.inputs.ids[side]?.length ?? 0)))
      throw new SourceError(`token: expected one below ${trace.inputs.ids[side]?.length ?? 0}; came ${request.token}`);
    return unitsOf(trace, request, (ids) => this.task.answerNames(ids));
  }

  async neighbours({ table, token, count = 10, step }: AskNeighbours): Promise<Neighbours> {
    return neighboursOf((await this.at(step)).model, this.task, table, token, count);
  }

  async context({ texts, word, step }: AskContext): Promise<ContextAnswer> {
    const wanted = word.trim();
    if (wanted === "") throw new SourceError("there is no word to follow: write one that stands in every text");
    if (texts.length > MOST_TEXTS) throw new SourceError(`texts: ${MOST_TEXTS} at most; came ${texts.length}`);
    const at = await this.at(step);
    const found = texts.flatMap((source) => {
      const target = this.task.plan.target === "writes" ? [] : null;
      const { trace } = this.traced(at, { source, target, edits: [] });
      return occurrences(this.task.reads, wanted, source, trace, at.model.sides[0]);
    });
    return contextView(wanted, found);
  }

  async positions({ n = 64, step }: AskPositions): Promise<Positions> {
    const { model, positions } = await this.at(step);
    return positionsOf(model, positions, Math.min(1024, Math.max(2, n)));
  }

  curves({ after = -1 }: AskCurves): Curves {
    const lines = (this.live.curves?.lines ?? []).filter(({ step }) => step > after);
    return { training: false, lines, last: lines.length === 0 ? null : Math.max(...lines.map(({ step }) => step)) };
  }

  tokenize(request: AskTokenize): TokenizedText {
    return tokenized(this.task, request);
  }

  /** What decoding from a text begins with; an output that continues the text leaves room for a trace of both. */
  private decoding(source: string, max_new: number | null): Decoding {
    const absent = this.live.run.absent?.decoding;
    if (absent !== undefined) throw new SourceError(absent);
    const { context, usual } = this.task.plan;
    const found = this.task.decoding(this.task.inputs(source, null), max_new, usual.decode);
    const there = (found.prefix ?? found.source).length;
    const room = Math.min(
      found.prefix === null ? context - there : Infinity,
      (this.own.model.reach ?? Infinity) - there,
    );
    if (room < 1)
      throw new SourceError(`the text fills the ${context} tokens that the model reads; shorten it to go on from it`);
    return { ...found, max_new: Math.min(room, found.max_new) };
  }

  /** Samples an output, or takes the likeliest token each time, and says what each token was drawn from. */
  async sample(request: AskSample): Promise<Sampled> {
    const at = await this.at(request.step);
    const edits = request.edits ?? [];
    this.checkEdits(edits);
    const longest = this.task.plan.target === "continues" ? MOST_SAMPLED : null;
    const room = this.decoding(request.source, longest).max_new;
    const decoding = this.decoding(request.source, Math.min(room, request.max_new ?? room));
    const drawn = sample(openSession(at.model, this.live, decoding, edits), decoding, request);
    const ids = drawn.map(({ token }) => token);
    const { writes, before } = decoding;
    const text = continuation(writes, before, ids);
    return {
      steps: drawn.map((step) => ({
        ...step,
        text: writes.names([step.token])[0],
        candidates: step.candidates.map((one) => ({ ...one, text: writes.names([one.id])[0] })),
      })),
      text,
      ends: ids.map((_, place) => inCommon(continuation(writes, before, ids.slice(0, place + 1)), text)),
      ids,
      ended: ids.length > 0 && decoding.end.includes(ids.at(-1)!),
      room,
      source_tokens: this.task.reads.names(decoding.source),
      cross: this.cross(at, request.source, ids, edits),
      edits,
    };
  }

  async decode({ beam = 4, candidates = 5, ...request }: AskDecode): Promise<Decoded> {
    const at = await this.at(request.step);
    const edits = request.edits ?? [];
    this.checkEdits(edits);
    const decoding = this.decoding(request.source, request.max_new ?? null);
    const session = openSession(at.model, this.live, decoding, edits);
    const tree = new Tree(this.task, decoding.end, decoding.max_new, beam);
    const found = beamSearch(session, decoding, beam, candidates, (step) => tree.watch(step));
    const best = tree.path(found[0].tokens);
    for (const place of best) tree.nodes[place].state = "best";
    return {
      nodes: tree.nodes,
      best,
      outputs: found.map((one) => ({
        text: continuation(decoding.writes, decoding.before, one.tokens),
        score: one.score,
        ids: one.tokens,
        ended: one.ended,
      })),
      source_tokens: this.task.reads.names(decoding.source),
      cross: this.cross(at, request.source, found[0].tokens, edits),
      edits,
    };
  }

  /** Where the best output looked in the source: of each token the mean weights of each layer. */
  private cross(at: Loaded, source: string, tokens: number[], edits: EditJson[]): Decoded["cross"] {
    if (at.model.sides.length === 1) return null;
    const reached = new Changes(edits).reaching(tokens.length).edits;
    const { trace } = this.traced(at, { source, target: tokens.slice(0, -1), edits: reached });
    const sites = [...trace.sites.values()].filter((site) => site.name.endsWith(".cross"));
    return tokens.map((_, place) => ({
      step: place + 1,
      weight: sites.map((site) => mean(this.heads(site, "mean").map((head) => site.weights(head, place)))),
    }));
  }
}

/** The answers of a compiled program at every token of the text, read from the logits. */
function programAnswers(program: ProgramPlan | null, trace: Trace): string[] | null {
  if (program === null) return null;
  const logits = trace.logits();
  const rows = Array.from({ length: logits.rows }, (_, row) => row).slice(program.offset, logits.rows - program.beside);
  return rows.map((row) => {
    const columns = program.answer_ids.map((id) => rowOf(logits, row)[id]);
    if (program.numeric) return shortNumber(columns[0]);
    const best = columns.indexOf(Math.max(...columns));
    return columns[best] > program.threshold ? program.answers[best] : "–";
  });
}

/** The tree of a search in the page's form. */
class Tree {
  readonly nodes: DecodeNode[] = [];
  private readonly places = new Map<Node, number>();

  constructor(
    private readonly task: Task,
    private readonly end: number[],
    private readonly most: number,
    private readonly width: number,
  ) {
    this.add(ROOT, 0, 0, "best");
  }

  watch({ length, beams, found, live }: Parameters<Parameters<typeof beamSearch>[4]>[0]): void {
    found.forEach(({ total, beam, token, shown }, rank) => {
      if (total === -Infinity) return;
      const parent = beams[beam];
      const node = live.find((one) => one.parent === parent && one.token === token);
      const ends = rank < this.width && (this.end.includes(token) || length === this.most);
      this.add(node ?? { parent, token, total, shown }, length, rank, node ? "live" : ends ? "ended" : "pruned");
    });
  }

  private add(node: Node, step: number, rank: number, state: DecodeNode["state"]): void {
    const { parent, token, total, shown } = node;
    const names = this.task.writes.names(shown.map(([id]) => id));
    this.places.set(node, this.nodes.length);
    this.nodes.push({
      id: this.nodes.length,
      parent: parent === null ? null : this.places.get(parent)!,
      step,
      token,
      text: parent === null ? "" : this.task.writes.names([token])[0],
      log_prob: total - (parent?.total ?? 0),
      total,
      state,
      rank,
      candidates: shown.map(([id, log], place) => ({ id, text: names[place], p: Math.exp(log) })),
    });
  }

  /** The places of these tokens, one after another from the root. */
  path(tokens: number[]): number[] {
    const found = [0];
    for (const token of tokens)
      found.push(this.nodes.find((node) => node.parent === found.at(-1) && node.token === token)!.id);
    return found;
  }
}

function mean(rows: ArrayLike<number>[]): number[] {
  return Array.from(
    { length: rows[0].length },
    (_, place) => rows.reduce((sum, row) => sum + row[place], 0) / rows.length,
  );
}

function meanOf(tiles: Matrix[]): Matrix {
  if (tiles.length === 1) return tiles[0];
  return { ...tiles[0], data: Float32Array.from(mean(tiles.map((tile) => tile.data))) };
}

/** How many characters two texts begin with alike. */
function inCommon(one: string, other: string): number {
  let place = 0;
  while (place < Math.min(one.length, other.length) && one[place] === other[place]) place++;
  return place;
}

/** A name for a request: the same for the same one. */
function fingerprint(text: string): string {
  let [a, b] = [0xdeadbeef, 0x41c6ce57];
  for (let place = 0; place < text.length; place++) {
    const code = text.charCodeAt(place);
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  return (a >>> 0).toString(16).padStart(8, "0") + (b >>> 0).toString(16).padStart(8, "0");
}

/** A number with four digits, as Python's `.4g` writes it. */
function shortNumber(value: number): string {
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(4)))));
  if (exponent < -4 || exponent >= 4) {
    const [digits, power] = value.toExponential(3).split("e");
    return `${String(Number(digits))}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  }
  return String(Number(value.toPrecision(4)));
}
