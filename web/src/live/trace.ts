/** A trace: one text's way through the model, every number within reach, as clearhead/tracing/trace.py has it. */

import type {
  BoxSpec,
  BoxValue,
  Candidate,
  Cell,
  EditJson,
  Matrix,
  RunFacts,
  SideName,
  StepEdit,
  AskTrace,
} from "../lib/source";
import { SourceError } from "../lib/source";
import { Rows } from "./attention";
import { Changes, isSwap } from "./changes";
import type { Model, Tap } from "./model";
import type { AttentionPlan, BranchPlan, LinearPlan, Live } from "./plan";
import { Site, type SiteVectors } from "./site";
import {
  type HeadVectors,
  headVector,
  joinHeads,
  largest,
  logSoftmax,
  matrix,
  normSteps,
  rowOf,
  splitHeads,
  type Tensor,
} from "./tensor";

const LIKELIEST = 20;
const SITE_STEP = /^((projected_|mapped_|latent_)?(query|key|value)|score|scaled|masked|weight|context|concat)$/;

export interface Inputs {
  ids: Partial<Record<SideName, number[]>>;
  tokens: Partial<Record<SideName, string[]>>;
}

/** The terms of one number that a linear map makes. */
export interface Terms {
  x: Float32Array;
  weight: Float32Array;
  bias: number;
  /** The place of the first x: of sliced heads, where the head's slice begins. */
  start: number;
}

export class Trace {
  readonly sites = new Map<string, Site>();
  /** The residual stream by name, in its order. */
  readonly stream = new Map<string, Matrix>();
  /** The last vectors of each side. */
  readonly ends = new Map<SideName, Matrix>();
  readonly values: Map<string, BoxValue>;
  private readonly sections = new Map<string, Map<string, Matrix>>();
  private wholeLogits: Matrix | null = null;
  readonly changes: Changes;

  constructor(
    readonly model: Model,
    readonly live: Pick<Live, "weightings" | "run">,
    readonly inputs: Inputs,
    readonly edits: EditJson[] = [],
  ) {
    this.changes = new Changes(edits);
    this.values = valuesOf(live.run);
    for (const side of model.sides) this.ends.set(side, this.read(side));
    if (edits.length > 0) this.checkOverflow();
  }

  get answerSide(): SideName {
    return this.model.sides.at(-1)!;
  }

  ids(side: SideName): number[] {
    return this.inputs.ids[side]!;
  }

  private read(side: SideName): Matrix {
    const streams = streamNames(this.model, side);
    const tap: Tap = (name, value, whole) => {
      const made = this.changes.matrix(name, value, whole);
      if (streams.has(name)) this.stream.set(name, made);
      return made;
    };
    const embedded = this.model.embed(side, this.ids(side), tap);
    return this.model.stack(side, embedded, (at, plan, x) => this.attend(at, plan, x), tap);
  }

  private attend(at: string, plan: AttentionPlan, x: Matrix): HeadVectors {
    const edits = this.changes.at(at);
    const swap = edits.findLast(isSwap);
    const swapped = swap === undefined ? null : this.live.weightings[swap.weighting];
    if (swapped?.form === "kernelized" && plan.position.biased)
      throw new SourceError(
        `Kernelized attention has no score to add a bias to, and ${plan.position.name} is one: use Rotary, or positions added to the embeddings`,
      );
    const rows = new Rows(plan, this.model.tensors, edits, swapped);
    const memory = at.endsWith(".cross") ? this.ends.get("encoder")! : x;
    const site = new Site(at, rows, this.project(at, rows, x, memory), edits);
    this.sites.set(at, site);
    return site.context;
  }

  private project(at: string, rows: Rows, x: Matrix, memory: Matrix): SiteVectors {
    const { plan } = rows;
    const [query, key, value] = [
      this.model.toHeads(plan.query, plan.n_heads, x).normed,
      this.model.toHeads(plan.key, plan.n_kv_heads, memory).normed,
      this.model.toHeads(plan.value, plan.n_kv_heads, memory).normed,
    ];
    const changed = (step: string, made: HeadVectors): HeadVectors => this.changes.heads(`${at}.${step}`, made);
    return {
      query: changed("query", rows.turn(query)),
      key: changed("key", rows.turn(key)),
      value: changed("value", value),
      projected: plan.position.turns ? { query, key } : null,
    };
  }

  private checkOverflow(): void {
    for (const name of this.values.keys()) {
      const site = name.endsWith(".context") ? this.sites.get(name.slice(0, -".context".length)) : undefined;
      const data = this.stream.get(name)?.data ?? site?.made.data;
      if (data?.some((value) => !Number.isFinite(value)))
        throw new SourceError(
          `${name} overflows: with these edits it has numbers that float32 cannot hold (the largest is 3.4e+38), so nothing after it means anything; edit by smaller numbers`,
        );
    }
  }

  /** Whether the output has a row for each token. */
  get byPosition(): boolean {
    return this.model.side(this.answerSide).output?.kind === "vocabulary";
  }

  /** The logits of the answers, a row for each that there is. */
  logits(): Matrix {
    if (this.wholeLogits !== null) return this.wholeLogits;
    const side = this.answerSide;
    const tap: Tap = (name, value, whole) => this.changes.matrix(name, value, whole);
    return (this.wholeLogits = this.model.output(side, this.ends.get(side)!, this.ids(side), tap));
  }

  /** The likeliest answers of each row, without their names. */
  candidates(shown = LIKELIEST): Omit<Candidate, "text">[][] {
    if (this.model.side(this.answerSide).output === null) return [];
    return likeliest(this.logits(), shown);
  }

  /** What each layer would answer, if the model stopped there. */
  lens(shown: number): { name: string; rows: Omit<Candidate, "text">[][] }[] {
    const side = this.answerSide;
    const plan = this.model.side(side);
    if (plan.output === null)
      throw new SourceError(
        "this model gives vectors and answers nothing, so there is nothing its layers would answer",
      );
    const names = [...this.stream.keys()].filter((name) => name.startsWith(`${side}.`));
    const ends = new Map(
      names.flatMap((name) => (/^\d+$/.test(name.split(".")[1]) ? [[name.split(".")[1], name]] : [])),
    );
    const wanted = names.filter((name) => name.endsWith("embedding.out") || [...ends.values()].includes(name));
    const answers = (x: Matrix): Omit<Candidate, "text">[][] =>
      likeliest(this.model.output(side, x, this.ids(side), same), shown);
    const found = wanted.map((name) => {
      const x = this.stream.get(name)!;
      return { name, rows: answers(plan.norm === null ? x : normSteps(this.model.norm(plan.norm), x).out) };
    });
    const last = this.stream.get(`${side}.normed`);
    return last === undefined ? found : [...found, { name: `${side}.normed`, rows: answers(last) }];
  }

  /** One row of a value, by its name: of what heads have, one head's. */
  vector(name: string, row: number, head: number): ArrayLike<number> {
    const value = this.values.get(name);
    if (value === undefined) throw new SourceError(`there is no ${name} in this model`);
    const at = name.slice(0, name.lastIndexOf("."));
    const step = name.slice(at.length + 1);
    const site = this.sites.get(at);
    if (site !== undefined && SITE_STEP.test(step)) return this.siteVector(site, step, row, head);
    const streamed = this.stream.get(name);
    if (streamed !== undefined) return checkedRow(name, streamed, row);
    const section = this.section(name, row);
    const found = section.get(name);
    if (found === undefined) throw new SourceError(`there is no ${name} in this trace`);
    if (value.rows === "none" || value.rows === "whole" || found.rows === 1) return rowOf(found, 0);
    return checkedRow(name, found, row);
  }

  private siteVector(site: Site, step: string, row: number, head: number): ArrayLike<number> {
    if (head >= site.n_heads)
      throw new SourceError(`${site.name}: there is no head ${head}; there are ${site.n_heads}, counted from 0`);
    const byKey = ["key", "value", "projected_key", "mapped_key", "latent_value"].includes(step);
    if (row >= (byKey ? site.n_key : site.n_query))
      throw new SourceError(`${site.name}.${step}: there is no row ${row}`);
    if (step === "concat") return rowOf(joinHeads(site.context), row);
    if (step === "query") return headVector(site.vectors.query, head, row);
    if (step === "context") return headVector(site.context, head, row);
    if (step === "key" || step === "value") return site.shared(step, head, row);
    if (step === "latent_value") return headVector(this.latent(site), this.shared(site, "value", head), row);
    const [before, role] = step.split("_") as [string, "query" | "key"];
    if (before === "projected") return headVector(site.vectors.projected![role], this.shared(site, role, head), row);
    if (before === "mapped") {
      const heads = role === "query" ? site.n_heads : site.rows.plan.n_kv_heads;
      const made = this.model.toHeads(site.rows.plan[role], heads, this.rowsInto(site.name, role));
      return headVector(made.mapped, this.shared(site, role, head), row);
    }
    return site.steps(head, row)[step as "score" | "scaled" | "masked" | "weight"];
  }

  private shared(site: Site, role: "query" | "key" | "value", head: number): number {
    return role === "query" ? head : Math.floor((head * site.rows.plan.n_kv_heads) / site.n_heads);
  }

  /** The values of a site between V_down and V_up. */
  private latent(site: Site): HeadVectors {
    const { value, n_kv_heads } = site.rows.plan;
    return splitHeads(this.model.linear(this.rowsInto(site.name, "value"), value.latent!.down), n_kv_heads);
  }

  /** Which numbers of its input a head reads: the first, and the one after the last. */
  private columnsRead(at: string, role: "query" | "key" | "value", head: number): [number, number | undefined] {
    const width = this.sites.get(at)!.rows.plan[role].slice;
    return width === null ? [0, undefined] : [head * width, (head + 1) * width];
  }

  /** What a head reads of a query's input, where that begins, and the latent value of a key. */
  readBy(at: string, head: number, query: number, key: number): Pick<Cell, "input" | "input_start" | "latent"> {
    const [site, reads] = [this.sites.get(at)!, this.columnsRead(at, "query", head)];
    const latent = site.rows.plan.value.latent === null ? null : this.siteVector(site, "latent_value", key, head);
    return {
      input: Array.from(rowOf(this.rowsInto(at, "query"), query).slice(...reads)),
      input_start: site.rows.plan.query.slice === null ? null : reads[0],
      latent: latent && Array.from(latent),
    };
  }

  /** What W_Q, W_K or W_V of a site read. */
  rowsInto(at: string, role: "query" | "key" | "value"): Matrix {
    if (role !== "query" && at.endsWith(".cross")) return this.ends.get("encoder")!;
    const { plan, came } = this.branchOf(at);
    const first = plan.places[0];
    if (first.box !== "norm") return came;
    return this.changes.matrix(`${at}.${first.out}`, normSteps(this.model.norm(plan.norm!), came).out);
  }

  /** The plan of a branch, and what came into it. */
  branchOf(at: string): { plan: BranchPlan; came: Matrix } {
    const [side, number, branch] = at.split(".") as [SideName, string, string];
    const branches = this.model.side(side).blocks[Number(number)];
    const before = [...this.stream.entries()].filter(([name]) => name.startsWith(`${side}.`));
    const own = before.findIndex(([name]) => name.startsWith(`${at}.`));
    return { plan: branches.find((one) => one.branch === branch)!, came: before[own - 1][1] };
  }

  /** The values that are computed together with one, by name; a row alone where the output has many columns. */
  private section(name: string, row: number): Map<string, Matrix> {
    const parts = name.split(".") as [SideName, string, string];
    const [side, kind] = parts;
    if (kind === "output") return this.outputSection(side, row);
    const key = /^\d+$/.test(kind) ? parts.slice(0, 3).join(".") : `${side}.${kind === "embedding" ? kind : "norm"}`;
    let found = this.sections.get(key);
    if (found === undefined) {
      found =
        kind === "embedding"
          ? this.embeddingSection(side)
          : key.endsWith("norm")
            ? this.lastNorm(side)
            : this.branchSection(key);
      if (this.sections.size > 3) this.sections.clear();
      this.sections.set(key, found);
    }
    return found;
  }

  private collecting(made: Map<string, Matrix>): Tap {
    return (name, value, whole) => {
      const changed = this.changes.matrix(name, value, whole);
      made.set(name, changed);
      return changed;
    };
  }

  private embeddingSection(side: SideName): Map<string, Matrix> {
    const made = new Map<string, Matrix>();
    const { norm, position, segment } = this.model.side(side).embedding;
    this.model.embed(side, this.ids(side), this.collecting(made));
    const at = `${side}.embedding`;
    const came = made.get(position === null && segment === null ? `${at}.token` : `${at}.sum`);
    if (norm !== null) this.addNorm(made, `${at}.norm`, norm, came!);
    return made;
  }

  private branchSection(at: string): Map<string, Matrix> {
    const made = new Map<string, Matrix>();
    const { plan, came } = this.branchOf(at);
    this.model.branch(at, plan, came, () => this.sites.get(at)!.context, this.collecting(made));
    let before = came;
    for (const { box, out, module } of plan.places) {
      if (box === "norm") this.addNorm(made, `${at}.${module}`, plan.norm!, before);
      before = made.get(`${at}.${out || "out"}`)!;
    }
    return made;
  }

  private lastNorm(side: SideName): Map<string, Matrix> {
    const made = new Map<string, Matrix>();
    const names = [...this.stream.keys()].filter((name) => name.startsWith(`${side}.`));
    this.addNorm(made, `${side}.norm`, this.model.side(side).norm!, this.stream.get(names.at(-2)!)!);
    return made;
  }

  private outputSection(side: SideName, row: number): Map<string, Matrix> {
    const made = new Map<string, Matrix>();
    const last = this.ends.get(side)!;
    const edited = this.changes.steps.some((edit: StepEdit) => edit.at === `${side}.output`);
    const alone = this.byPosition && !edited;
    if (this.byPosition && row >= last.rows) throw new SourceError(`${side}.output: there is no row ${row}`);
    const x = alone ? { rows: 1, columns: last.columns, data: rowOf(last, row) } : last;
    const logits = this.model.output(side, x, this.ids(side), this.collecting(made));
    const share = matrix(logits.rows, logits.columns);
    for (let each = 0; each < logits.rows; each++)
      share.data.set(logSoftmax(rowOf(logits, each)).map(Math.exp), each * logits.columns);
    return made.set(`${side}.output.probability`, share);
  }

  private addNorm(made: Map<string, Matrix>, at: string, plan: BranchPlan["norm"], x: Matrix): void {
    const norm = this.model.norm(plan!);
    for (const [name, value] of Object.entries(normSteps(norm, x)))
      if (name !== "out") made.set(`${at}.${name}`, value as Matrix);
    const learned = (data: Float32Array): Matrix => ({ rows: 1, columns: data.length, data });
    made.set(`${at}.gamma`, learned(norm.gamma));
    if (norm.beta !== null) made.set(`${at}.beta`, learned(norm.beta));
  }

  /** The sum of products that one number of a linear map is. */
  terms(name: string, row: number, unit: number, head: number): Terms {
    const value = this.values.get(name);
    const found = value === undefined ? null : this.mapOf(name, head);
    if (found === null || value === undefined)
      throw new SourceError(`${name} is not made by one linear map: it has no sum of products to show`);
    const { map, first, factor } = found;
    const at = name.slice(0, name.lastIndexOf("."));
    const x =
      found.role === null
        ? Float32Array.from(this.vector(value.of, row, head))
        : rowOf(this.rowsInto(at, found.role), row).slice();
    const [outputs, inputs] = this.model.tensor(map.weight).shape;
    if (unit >= (found.units ?? outputs)) throw new SourceError(`${name}: there is no unit ${unit}`);
    const from = (first + unit) * inputs;
    const weight = this.model.tensor(map.weight).data.slice(from, from + inputs);
    if (factor !== 1) weight.forEach((one, place) => (weight[place] = one * factor));
    const reads = found.role === null ? ([0] as const) : this.columnsRead(at, found.role, head);
    const bias = map.bias === null ? 0 : this.model.tensor(map.bias).data[first + unit];
    return { x: x.slice(...reads), weight: weight.slice(...reads), bias, start: reads[0] };
  }

  /** The map that makes a value, the first of its rows for a head, and how many there are. */
  private mapOf(
    name: string,
    head: number,
  ): {
    map: LinearPlan;
    first: number;
    units: number | null;
    role: "query" | "key" | "value" | null;
    factor: number;
  } | null {
    const at = name.slice(0, name.lastIndexOf("."));
    const step = name.slice(at.length + 1);
    const plain = { first: 0, units: null, role: null, factor: 1 };
    const site = this.sites.get(at);
    if (site !== undefined) {
      const { plan } = site.rows;
      if (step === "out") return plan.output === null ? null : { map: plan.output, ...plain };
      const role = step.split("_").at(-1) as "query" | "key" | "value";
      const { latent } = plan[role];
      if (latent !== null) {
        const map = step === role ? latent.up : latent.down;
        const units = this.model.tensor(map.weight).shape[0] / plan.n_kv_heads;
        return {
          map,
          first: this.shared(site, role, head) * units,
          units,
          role: step === role ? null : role,
          factor: 1,
        };
      }
      const units = role === "value" ? plan.d_value : plan.d_head;
      return { map: plan[role], first: this.shared(site, role, head) * units, units, role, factor: 1 };
    }
    const [side, kind] = at.split(".") as [SideName, string];
    if (kind === "output") {
      const output = this.model.side(side).output!;
      if (output.kind === "classes") return { map: output.out, ...plain };
      return { map: { weight: output.table, bias: output.bias }, ...plain, factor: output.factor };
    }
    const network = this.branchOf(at).plan.network!;
    const map = { pre_activation: network.up, gate: network.gate, up: network.up, out: network.down }[step];
    return map ? { map, ...plain } : null;
  }
}

const same: Tap = (_, value) => value;

function checkedRow(name: string, value: Matrix, row: number): Float32Array {
  if (row >= value.rows) throw new SourceError(`${name}: there is no row ${row}`);
  return rowOf(value, row);
}

function likeliest(logits: Matrix, shown: number): Omit<Candidate, "text">[][] {
  return Array.from({ length: logits.rows }, (_, row) => {
    const logs = logSoftmax(rowOf(logits, row));
    return largest(logs, Math.min(shown, logs.length)).map((id) => ({ id, p: Math.exp(logs[id]) }));
  });
}

export function boxesOf(run: RunFacts): BoxSpec[] {
  return run.sides.flatMap((side) => side.boxes);
}

function valuesOf(run: RunFacts): Map<string, BoxValue> {
  return new Map(boxesOf(run).flatMap((box) => box.values.map((value) => [value.name, value])));
}

/** The names of what flows between the parts of a side. */
export function streamNames(model: Model, side: SideName): Set<string> {
  const { embedding, blocks, norm } = model.side(side);
  const at = `${side}.embedding`;
  const first = [`${at}.token`, ...(embedding.segment === null ? [] : [`${at}.segment`]), `${at}.out`];
  const middle = blocks.flatMap((branches, number) =>
    branches.map((branch) => `${side}.${number}.${branch.branch}.${branch.places.at(-1)!.out}`),
  );
  return new Set([...first, ...middle, ...(norm === null ? [] : [`${side}.normed`])]);
}

/** The names of all values that can be changed by themselves. */
export function tapNames(model: Model): Set<string> {
  const found = new Set<string>();
  for (const side of model.sides) {
    for (const name of ["token", "segment", "position", "sum", "out"]) found.add(`${side}.embedding.${name}`);
    model.side(side).blocks.forEach((branches, number) => {
      for (const { branch, places, network } of branches) {
        const at = `${side}.${number}.${branch}`;
        const gated = ["gate", "activated_gate", "up", "hidden", "out"];
        const own =
          network === undefined ? ["concat", "out"] : network.gate ? gated : ["pre_activation", "hidden", "out"];
        for (const name of [...own, ...places.flatMap(({ out }) => (out ? [out] : []))]) found.add(`${at}.${name}`);
      }
    });
    if (model.side(side).norm !== null) found.add(`${side}.normed`);
    for (const name of ["transformed", "logits", "pooled", "hidden", "deep", "wide_logits"])
      found.add(`${side}.output.${name}`);
  }
  return found;
}

export type { Tensor, AskTrace };
