/** Grades the exercises of a lesson by the answer key in the page (clearhead/serve/answer_key.py). */

import { inflate } from "../../lib/inflate";
import {
  type Answering,
  type AnswerKey,
  type AskGrade,
  type GradedAnswer,
  type KnownMistake,
  type MysteryModel,
  type PageExercises,
  type ProgramKey,
  type SlipNumbers,
  SourceError,
} from "../../lib/source";
import { gradeHead } from "./head";
import { type Computed, Program } from "./program";
import { fitsRow, quote, showRow, showValue, type Value } from "./values";

type Row = Value[];

export class Grader implements Answering {
  constructor(private readonly key: AnswerKey) {}

  static async unpack(packed: string): Promise<Grader> {
    return new Grader(JSON.parse(new TextDecoder().decode(await inflate(packed))) as AnswerKey);
  }

  exercises(): PageExercises {
    return this.key.exercises;
  }

  slip({ name, text }: { name: string; text?: number }): SlipNumbers {
    return found(this.key.slips, name).numbers[text ?? 0];
  }

  mystery({ name }: { name: string }): MysteryModel {
    const { model } = found(this.key.programs, name);
    if (model === null) throw new SourceError(`${name} is no mystery`);
    return model;
  }

  grade(asked: AskGrade): GradedAnswer {
    const { name } = asked;
    if (Object.hasOwn(this.key.slips, name))
      return found(this.key.slips[name].verdicts, `${asked.at} ${asked.step} ${asked.formula}`);
    return Object.hasOwn(this.key.designs, name) ? this.gradeDesign(asked) : this.gradeProgram(asked);
  }

  private gradeDesign({ name, vectors }: AskGrade): GradedAnswer {
    const goal = this.key.exercises.goals.find((one) => one.asked.name === name)!;
    const { credit, worst } = gradeHead(goal, this.key.designs[name], vectors ?? {});
    const facts = { credit: percent(credit), word: worst.sentence[worst.place], text: worst.sentence.join(" ") };
    const right = worst.share >= this.key.enough;
    const more = { share: percent(worst.share), output: numbers(worst.output), wanted: numbers(worst.wanted) };
    const line = right ? "designed" : worst.output === null ? "credit" : "output";
    return { ...verdict(name, right, [this.say(line, { ...facts, ...more })]), credit };
  }

  private gradeProgram({ name, lines, edges }: AskGrade): GradedAnswer {
    const key = found(this.key.programs, name);
    const program = new Program(lines ?? []);
    const came = key.texts.map((text) => program.answer(text));
    const wrong = came.findIndex((answer, at) => !("row" in answer && fitsRow(key.expected[at] as Row, answer.row)));
    const marked = key.truth === null ? null : this.gradeEdges(key.truth, edges ?? []);
    if (wrong < 0 && (marked === null || marked.right)) return verdict(name, true, marked?.lines ?? []);
    const computed = wrong < 0 ? [] : this.lineValues(program, key.texts[wrong]);
    const mistake = key.mistakes.find((one) => isMistake(one, came, edges ?? []));
    return {
      ...verdict(name, false, [
        ...(marked === null || marked.right ? [] : marked.lines),
        wrong < 0 ? this.say("program") : this.counterExample(key, wrong, came[wrong]),
        ...computed.map(([line, values]) => `  ${this.say("line", { name: line, values })}`),
        ...(mistake === undefined ? [] : [mistake.said]),
      ]),
      computed,
    };
  }

  private gradeEdges(truth: readonly string[], edges: readonly string[]): { right: boolean; lines: string[] } {
    const extra = edges.filter((edge) => !truth.includes(edge)).toSorted();
    const right = edges.length - extra.length;
    const counted = this.say("edges", { right, true: truth.length, extra: extra.length });
    return {
      right: right === truth.length && extra.length === 0,
      lines: [counted, ...extra.slice(0, 1).map((edge) => this.say("extra edge", { edge }))],
    };
  }

  private counterExample({ texts, expected }: ProgramKey, at: number, answer: Computed): string {
    const row = expected[at] as Row;
    if (!("row" in answer))
      return this.say("stops", { given: texts[at], expected: showRow(row), came: this.show(answer) });
    const alike = showRow(row) === showRow(answer.row);
    const [wanted, came] = [row, answer.row].map((one) => showRow(one, alike ? quote : showValue));
    return this.say("text", { given: texts[at], expected: wanted, came });
  }

  private lineValues(program: Program, text: string): [string, string][] {
    const all = program.computed(text);
    return all.map((one, at) => [at === all.length - 1 ? "answer" : `line_${at + 1}`, this.show(one)]);
  }

  private show(computed: Computed): string {
    if ("failed" in computed)
      return computed.failed === null ? this.say("several") : this.say("unfit", { line: computed.failed });
    const rows = "selected" in computed ? computed.selected : computed.row;
    const pairs = rows.length > 0 && rows.every((one) => Array.isArray(one));
    return pairs ? rows.map((one) => `[${showRow(one as Row)}]`).join(" ") : showRow(rows);
  }

  private say(line: string, facts: Record<string, string | number> = {}): string {
    return this.key.said[line].replaceAll(/\{(\w+)\}/g, (_, name: string) => String(facts[name]));
  }
}

function found<One>(of: Record<string, One>, name: string): One {
  if (!Object.hasOwn(of, name)) throw new SourceError(`This page has no answer for ${name}`);
  return of[name];
}

function verdict(name: string, right: boolean, lines: string[]): GradedAnswer {
  return { name, state: right ? "right" : "not yet", lines, credit: null, computed: [] };
}

function isMistake({ rows, edges }: KnownMistake, came: readonly Computed[], marked: readonly string[]): boolean {
  if (edges !== null && (edges.length !== marked.length || !edges.every((edge) => marked.includes(edge)))) return false;
  return came.every((answer, at) => {
    const row = rows[at] as Row | null;
    return row === null ? !("row" in answer) : "row" in answer && fitsRow(row, answer.row);
  });
}

function percent(share: number): string {
  return `${even(100 * share)}%`;
}

function numbers(all: readonly number[] | null): string {
  return `[${(all ?? []).map((number) => (even(100 * number) / 100).toFixed(2)).join(", ")}]`;
}

/** Rounds to the nearest, and a half to the even number, as Python does. */
function even(number: number): number {
  const down = Math.floor(number);
  const up = number - down > 0.5 || (number - down === 0.5 && down % 2 !== 0);
  return up ? down + 1 : down;
}
