/** The engine in a thread of its own, so that the page stays smooth while the model runs. */

import { type Answering, askOwn, type QuestionName, SourceError, type ViewName } from "../lib/source";
import { Engine } from "./engine";
import { Grader } from "./exercises/grading";
import { Film } from "./film";
import { unpackWeights } from "./weights";

type Data = ConstructorParameters<typeof Engine>[0] & {
  /** The views in which exercises of a lesson are solved, and the answer key, packed. */
  exercises: { views: ViewName[]; key: string } | null;
};

export interface Setup {
  data: Data;
  /** The run's own; those of each step of the film in the lines after them. */
  weights: string;
}

/** A question by number; `stop`: its answer is not wanted any more. */
export interface Question {
  number: number;
  name: QuestionName;
  asked: object;
}

export type Told = Setup | Question | { stop: number };

export interface Answered {
  number: number;
  answer?: unknown;
  error?: { message: string; status: number };
}

/** What answers questions about the run, and what those about exercises. */
let engine: Promise<Answering> | null = null;
let grader: Promise<Answering> | null = null;
/** Questions that need no model. */
const OF_EXERCISES: readonly QuestionName[] = ["exercises", "slip", "mystery", "grade"];
const waiting = new Map<number, Question>();

addEventListener("message", ({ data: told }: MessageEvent<Told>) => {
  if ("weights" in told) {
    const { data } = told;
    const [weights, ...lines] = told.weights.split("\n");
    const film = data.film === null ? null : new Film(data.film, lines);
    engine = unpackWeights(weights, data.tensors).then((tensors) => new Engine(data, tensors, film));
    grader = data.exercises === null ? null : Grader.unpack(data.exercises.key);
  } else if ("stop" in told) waiting.delete(told.stop);
  else {
    waiting.set(told.number, told);
    // In a task of its own: a stop that has arrived meanwhile is heard first.
    setTimeout(() => void answer(told.number));
  }
});

async function answer(number: number): Promise<void> {
  const name = waiting.get(number)?.name;
  const made = await (name !== undefined && OF_EXERCISES.includes(name) ? (grader ?? engine!) : engine!);
  const question = waiting.get(number);
  if (question === undefined) return;
  waiting.delete(number);
  try {
    const answer = await askOwn(made, question.name, question.asked as never);
    postMessage({ number, answer } satisfies Answered);
  } catch (error) {
    const status = error instanceof SourceError ? error.status : 0;
    const message = error instanceof Error ? error.message : String(error);
    postMessage({ number, error: { message, status } } satisfies Answered);
  }
}
