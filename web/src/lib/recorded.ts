/** A source that answers from a file: what the explorer answered about one text, as clearhead/serve/recorded.py writes it. */

import { inflate } from "./inflate";
import {
  type Answers,
  type Asks,
  type AskTrace,
  type Meta,
  type QuestionName,
  type Source,
  SourceError,
} from "./source";
import type { ViewName } from "./views";

const HERE = "This page holds the attention weights of one text. For more, open the run: clearhead look RUN";

/** A matrix or thumbnails, one byte a number. */
interface Packed {
  rows: number;
  columns: number;
  heads?: number;
  /** Base64 of zlib's format. */
  bytes: string;
}

export class RecordedSource implements Source {
  readonly pinned = true;

  constructor(
    private readonly answers: Record<string, unknown>,
    readonly views: readonly ViewName[] = ["model", "heads", "head"],
  ) {}

  during(): this {
    return this;
  }

  async ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    const found = this.answers[name] ?? this.answers[answerName(name, asked)];
    const other = name === "trace" && (asked as AskTrace).source !== (found as Meta).source;
    if (found === undefined || other) throw new SourceError(HERE);
    return (await unpacked(found)) as Answers<Name>;
  }
}

/** The question and what it asks, but for zeros and what does not choose numbers. */
function answerName(name: string, asked: object): string {
  const words = Object.entries(asked).filter(([word, value]) => value && word !== "trace" && word !== "rows");
  return `${name} ${JSON.stringify(Object.fromEntries(words.sort(([one], [other]) => (one < other ? -1 : 1))))}`;
}

async function unpacked(answer: unknown): Promise<unknown> {
  const { bytes, ...size } = answer as Packed;
  if (bytes === undefined) return structuredClone(answer);
  const data = await inflate(bytes);
  return { ...size, data: size.heads === undefined ? Float32Array.from(data, (byte) => byte / 255) : data };
}
