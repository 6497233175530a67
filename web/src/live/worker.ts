/** The engine in a thread of its own, so that the page stays smooth while the model runs. */

import { askOwn, type QuestionName, SourceError } from "../lib/source";
import { Engine } from "./engine";
import { unpackWeights } from "./weights";

type Data = ConstructorParameters<typeof Engine>[0];

export interface Setup {
  data: Data;
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

let engine: Promise<Engine> | null = null;
const waiting = new Map<number, Question>();

addEventListener("message", ({ data: told }: MessageEvent<Told>) => {
  if ("weights" in told)
    engine = unpackWeights(told.weights, told.data.tensors).then((tensors) => new Engine(told.data, tensors));
  else if ("stop" in told) waiting.delete(told.stop);
  else {
    waiting.set(told.number, told);
    // In a task of its own: a stop that has arrived meanwhile is heard first.
    setTimeout(() => void answer(told.number));
  }
});

async function answer(number: number): Promise<void> {
  const made = await engine!;
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
