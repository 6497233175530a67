/** The demo's own answers to one text, for unit tests: `python -m tests.serve.write_recorded RUN` writes them. */

import { type Answers, type Asks, type QuestionName, type Source, SourceError } from "../src/lib/source";
import { VIEWS } from "../src/lib/views";
import answers from "./recorded.json";

export class RecordedSource implements Source {
  readonly views = VIEWS;

  during(): this {
    return this;
  }

  exact(): boolean {
    return true;
  }

  async ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    const given = Object.entries(asked).filter(([word]) => word !== "trace");
    const sorted = Object.fromEntries(given.sort(([one], [other]) => (one < other ? -1 : 1)));
    const alone = name === "run" || name === "trace";
    const found = (answers as Record<string, unknown>)[alone ? name : `${name} ${JSON.stringify(sorted)}`];
    if (found === undefined) throw new SourceError(`${name} ${JSON.stringify(sorted)}: was not recorded`);
    return structuredClone(found) as Answers<Name>;
  }
}
