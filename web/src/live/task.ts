/** What a run does with a text: the tokens around it, what it may write, what its answers are called. */

import { type Candidate, type SideName, SourceError } from "../lib/source";
import type { FramePlan, Live, TaskPlan } from "./plan";
import { Tokenizer } from "./tokenizer";
import type { Inputs, Trace } from "./trace";

/** What decoding begins with, and what it may write. */
export interface Decoding {
  source: number[];
  /** What stands before the output on the decoder's side; null where the output continues the source. */
  prefix: number[] | null;
  max_new: number;
  end: number[];
  never: number[];
  writes: Tokenizer;
  before: number[];
}

type Target = string | number[] | null;

export class Task {
  readonly tokenizers: Tokenizer[];
  readonly plan: TaskPlan;
  private readonly side: SideName;

  constructor(live: Live) {
    this.plan = live.task;
    const made = live.tokenizers.map((plan) => new Tokenizer(plan));
    this.tokenizers = this.plan.tokenizer.map((number) => made[number]);
    this.side = live.plan.encoder === undefined ? "decoder" : "encoder";
  }

  /** The tokeniser of the input. */
  get reads(): Tokenizer {
    return this.tokenizers[0];
  }

  get writes(): Tokenizer {
    return this.tokenizers.at(-1)!;
  }

  private frame(field = 0): FramePlan {
    return this.plan.frames[this.plan.fields[field]];
  }

  inputs(source: string, target: Target): Inputs {
    const { target: takes, name } = this.plan;
    if (source.trim() === "" && !(takes === "continues" && target !== null && target.length > 0))
      throw new SourceError("there is no text to trace: expected one; came a blank one");
    if (target !== null && takes === "none")
      throw new SourceError(`this run was trained to ${name}: its text has no target; leave it out`);
    switch (this.plan.reads) {
      case "translate":
        return this.pair(source, target);
      case "generate":
        return this.single("decoder", this.continued(source, target));
      case "fill":
        return this.single(this.side, this.framed(this.withBlanks(source)));
      default:
        return this.single(this.side, this.framed(this.reads.encode(source)));
    }
  }

  private framed(ids: number[]): number[] {
    const { before, opening, after } = this.frame();
    return [...before, ...opening, ...ids, ...after];
  }

  private single(side: SideName, ids: number[]): Inputs {
    if (ids.length > this.plan.context)
      throw new SourceError(
        `the text has ${ids.length} tokens, and the model was trained to read ${this.plan.context}; shorten it`,
      );
    return { ids: { [side]: ids }, tokens: { [side]: this.reads.names(ids) } };
  }

  private pair(source: string, target: Target): Inputs {
    const read = this.reads.encode(source);
    const wanted = target === null ? [] : typeof target === "string" ? this.writes.encode(target) : target;
    for (const [name, row] of [
      ["source", read],
      ["target", wanted],
    ] as const)
      // prettier-ignore
      if (row.length > this.plan.longest)
        throw new SourceError(
          `the ${name} has ${row.length} tokens, and the model reads ${this.plan.longest}; shorten it`,
        );
    const frame = this.frame(1);
    const decoder = [...frame.before, ...(target === null ? [] : frame.opening), ...wanted];
    const encoder = this.framed(read);
    return {
      ids: { encoder, decoder },
      tokens: { encoder: this.reads.names(encoder), decoder: this.writes.names(decoder) },
    };
  }

  private continued(source: string, target: Target): number[] {
    let ids = this.reads.encode(source);
    if (typeof target === "string") ids = this.reads.encode(source + target);
    else if (target !== null) ids = [...ids, ...target];
    const whole = [...this.frame().before, ...ids];
    return whole.length > 0 ? whole : this.plan.opener;
  }

  /** The model's own output after its source, as tokens to trace. */
  withOutput(inputs: Inputs, tokens: number[]): Inputs {
    const { end } = this.decoding(inputs, null, this.plan.usual.trace);
    const own = tokens.filter((token) => !end.includes(token)).slice(0, this.plan.context - 1);
    const ids = [...inputs.ids.decoder!, ...own];
    return { ids: { ...inputs.ids, decoder: ids }, tokens: { ...inputs.tokens, decoder: this.writes.names(ids) } };
  }

  decoding({ ids }: Inputs, max_new: number | null, usual: number): Decoding {
    const { context } = this.plan;
    if (this.plan.reads === "translate") {
      const frame = this.frame(1);
      return {
        source: ids.encoder!,
        prefix: frame.before,
        max_new: Math.min(context, max_new ?? reach(ids.encoder!.length)),
        end: frame.ends,
        never: frame.never,
        writes: this.writes,
        before: [],
      };
    }
    const source = ids.decoder!;
    const room = context - source.length + 1;
    if (room < 1) throw new SourceError(`the text fills the context of ${context} tokens; shorten it to write more`);
    const { ends, never } = this.frame();
    const most = Math.min(room, max_new ?? usual);
    return { source, prefix: null, max_new: most, end: ends, never, writes: this.reads, before: source };
  }

  /** Text with blanks as tokens: what is between them, and a mask for each. */
  private withBlanks(text: string): number[] {
    const { blank } = this.plan;
    if (!text.includes(blank)) return this.reads.encode(text);
    const alone = ["byte", "char"].includes(this.reads.plan.kind);
    const split = text.split(blank);
    const last = split.pop()!;
    const parts = [...split.map((part) => (alone || !part.endsWith(" ") ? part : part.slice(0, -1))), last];
    return parts.flatMap((part, place) =>
      place === 0 ? this.reads.encode(part) : [this.reads.ids.mask, ...this.encodeInside(part)],
    );
  }

  /** The ids of what stands within a text: some tokenisers put a space before whatever they are given. */
  private encodeInside(part: string): number[] {
    const line = this.reads.encode("\n");
    const both = this.reads.encode(`\n${part}`);
    return line.every((id, place) => both[place] === id) ? both.slice(line.length) : this.reads.encode(part);
  }

  unseen(text: string): string {
    return this.reads.unseen(this.plan.reads === "fill" ? text.replaceAll(this.plan.blank, " ") : text);
  }

  answerNames(ids: number[]): string[] {
    if (this.plan.labels.length > 0) return ids.map((id) => this.plan.labels[id]);
    return this.plan.reads === "embed" ? ids.map((id) => `x${id}`) : this.writes.names(ids);
  }

  answer(source: string, trace: Trace, candidates: Candidate[][]): string {
    switch (this.plan.reads) {
      case "translate":
        return this.writes.decode(candidates.map((row) => row[0].id));
      case "embed":
        return "";
      case "fill":
        return this.filled(source, trace.ids(trace.answerSide), candidates);
      default:
        return candidates.at(-1)![0].text;
    }
  }

  /** The text with the likeliest piece in each blank. */
  private filled(source: string, row: number[], candidates: Candidate[][]): string {
    const { mask } = this.reads.ids;
    const usable = candidates.map((one) => one.find(({ id }) => !this.reads.special.has(id)) ?? one[0]);
    const likeliest = row.map((token, place) => (token === mask ? usable[place].id : token));
    const blanks = row.flatMap((token, place) => (token === mask ? [place] : []));
    const [first, ...others] = source.split(this.plan.blank);
    let made = first;
    others.slice(0, blanks.length).forEach((part, number) => {
      const place = blanks[number];
      const piece = continuation(this.reads, likeliest.slice(0, place), [likeliest[place]]);
      const spaced = made === "" || made.endsWith(" ");
      made += (spaced && piece.startsWith(" ") ? piece.slice(1) : piece) + part;
    });
    return [made, ...others.slice(blanks.length)].join(this.plan.blank);
  }

  target(target: Target, trace: Trace): string | null {
    if (this.plan.reads === "translate") return this.writes.decode(trace.ids("decoder"));
    return target === null || typeof target === "string" ? target : this.reads.decode(target);
  }
}

/** The text of tokens that follow others. */
export function continuation(tokenizer: Tokenizer, before: number[], tokens: number[]): string {
  const [first, both] = [tokenizer.decode(before), tokenizer.decode([...before, ...tokens])];
  return both.startsWith(first) ? both.slice(first.length) : tokenizer.decode(tokens);
}

/** How many tokens the translation of a text may have. */
function reach(length: number): number {
  return 2 * Math.max(16, 2 ** Math.ceil(Math.log2(length))) + 16;
}
