/** The types of everything a view can ask for, and the interface that the server, a live page and a recorded one answer. */

import type { Questions } from "./messages";
import type { ViewName } from "./views";

export * from "./messages";

export type QuestionName = keyof Questions;
export type Asks<Name extends QuestionName> = Questions[Name]["asks"];
export type Answers<Name extends QuestionName> = Questions[Name]["answers"];
export type Role = "query" | "key" | "value" | "weight" | "context";
export type { ViewName };

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

/** Where numbers come from. */
export interface Source {
  /** The views this source has the numbers for. */
  readonly views: readonly ViewName[];
  /** True where it has answers about one text alone. */
  readonly pinned?: boolean;
  /** True where it can be asked for the weights of every step that the run has kept. */
  readonly everyStep?: boolean;
  /** True where activation patching and attribution can be asked for. */
  readonly patches?: boolean;
  /** True where tiles can be asked for as the attention rollout, and as the lengths of what is added. */
  readonly rollout?: boolean;
  /** What a question was last asked with, where it can also be asked for lines of Python. */
  lastAsked?<Name extends QuestionName>(name: Name): Asks<Name> | undefined;
  /** The source of the second run, where `run` says that there is one. */
  other?(): Source;
  /** The same source, whose requests are aborted with the signal unless somebody else waits for them too. */
  during(signal: AbortSignal): Source;
  /** The answer to a question; about a trace by the id of a Meta that "trace" has answered. */
  ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>>;
}

/** A method for each question that it can answer. */
export type Answering = {
  [Name in QuestionName]?: (asked: Asks<Name>) => Answers<Name> | Promise<Answers<Name>>;
};

export async function askOwn<Name extends QuestionName>(
  own: Answering,
  name: Name,
  asked: Asks<Name>,
): Promise<Answers<Name>> {
  const method = own[name];
  if (method === undefined)
    throw new SourceError("This page does not have that view. Open the run: clearhead look RUN");
  return method.call(own, asked);
}
