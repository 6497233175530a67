/** The source behind `clearhead look`: relative addresses, so that the token in the page's own address goes along. */

import { Cache } from "./cache";
import {
  type Answers,
  type Asks,
  type AskTrace,
  FORMS,
  type Matrix,
  type Meta,
  type QuestionName,
  type Source,
  SourceError,
  type Thumbs,
} from "./source";
import { VIEWS } from "./views";

const GONE = 410;

type Make<Answer> = (signal: AbortSignal) => Promise<Answer>;
/** Answers that change while the page is open: they are asked for anew each time. */
const GROWING: ReadonlySet<QuestionName> = new Set(["run", "curves"]);

/** What was answered lately, and is not asked for again. */
class Kept {
  readonly last = new Map<QuestionName, object>();
  readonly requests = new Cache<AskTrace>(64);
  /** One text at every step of a film, and a few more. */
  readonly metas = new Cache<Shared<Meta>>(48);
  readonly small = new Cache<Shared<unknown>>(1000);
  /** The map and what stands beside it ask for the same ones, and a film has those of every step. By their bytes. */
  readonly tiles = new Cache<Shared<Matrix>>(32 * 2 ** 20);
}

export class ServerSource implements Source {
  readonly views = VIEWS;
  readonly everyStep = true;
  readonly patches = true;
  readonly rollout = true;

  constructor(
    private readonly base = "api/",
    private readonly fetcher: typeof fetch = (...given) => fetch(...given),
    private readonly kept = new Kept(),
    private readonly signal?: AbortSignal,
  ) {}

  other(): ServerSource {
    return new ServerSource(`b/${this.base}`, this.fetcher);
  }

  during(signal: AbortSignal): ServerSource {
    return new ServerSource(this.base, this.fetcher, this.kept, signal);
  }

  lastAsked<Name extends QuestionName>(name: Name): Asks<Name> | undefined {
    return this.kept.last.get(name) as Asks<Name> | undefined;
  }

  ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    // The mask of a map is asked for beside its numbers, which are what is looked at.
    if (!("step" in asked && asked.step === "allowed")) this.kept.last.set(name, asked);
    const make = (signal?: AbortSignal): Promise<Answers<Name>> => this.answer(name, asked, signal);
    if (GROWING.has(name)) return make(this.signal);
    const key = `${name} ${JSON.stringify(asked)}`;
    const caches: { [Name in QuestionName]?: unknown } = { trace: this.kept.metas, tile: this.kept.tiles };
    const cache = (caches[name] ?? this.kept.small) as Cache<Shared<Answers<Name>>>;
    return this.remember(cache, key, make, name === "tile" ? (tile) => (tile as Matrix).data.byteLength : undefined);
  }

  private async answer<Name extends QuestionName>(
    name: Name,
    asked: Asks<Name>,
    signal?: AbortSignal,
  ): Promise<Answers<Name>> {
    const { trace, ...values } = asked as Record<string, unknown> & { trace?: string };
    const answer = await (trace === undefined
      ? this.fetch(name, FORMS[name] === "sent" ? {} : values, signal, FORMS[name] === "sent" ? values : undefined)
      : this.ofTrace(trace, name, values, signal));
    const made = (await READ[FORMS[name] ?? "json"](answer)) as Answers<Name>;
    if (name === "trace") this.kept.requests.set((made as Meta).id, asked as AskTrace);
    return made;
  }

  /** A request kept under its name; one that fails or is aborted is forgotten, so that it is tried again. */
  private remember<Answer>(
    cache: Cache<Shared<Answer>>,
    name: string,
    make: Make<Answer>,
    sizeOf?: (answer: Answer) => number,
  ): Promise<Answer> {
    if (this.signal?.aborted) return Promise.reject(this.signal.reason);
    const known = cache.get(name);
    if (known !== undefined) return known.wait(this.signal);
    const made = new Shared(make, () => cache.get(name) === made && cache.delete(name));
    cache.set(name, made);
    if (sizeOf !== undefined)
      made.settled((answer) => cache.get(name) === made && cache.set(name, made, sizeOf(answer)));
    return made.wait(this.signal);
  }

  /** Asks about a trace; one the server has let go is asked for again first. */
  private async ofTrace(id: string, name: QuestionName, values: object, signal?: AbortSignal): Promise<Response> {
    try {
      return await this.fetch(`trace/${id}/${name}`, values, signal);
    } catch (error) {
      const request = this.kept.requests.get(id);
      if (!(error instanceof SourceError) || error.status !== GONE || request === undefined) throw error;
      const meta = await this.answer("trace", request, signal);
      return this.fetch(`trace/${meta.id}/${name}`, values, signal);
    }
  }

  private async fetch(path: string, values: object, signal?: AbortSignal, body?: unknown): Promise<Response> {
    const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
    const asked = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    const address = this.base + path + (asked && `?${asked}`);
    const init = { signal, ...(body === undefined ? {} : posting(body)) };
    const answer = await this.fetcher(address, init).catch(unreachable);
    if (!answer.ok) throw new SourceError(await sentence(answer), answer.status);
    return answer;
  }
}

/** A request that several wait for; it is aborted when none of them waits any longer. */
class Shared<Answer> {
  private readonly stop = new AbortController();
  private readonly answer: Promise<Answer>;
  private waiting = 0;
  private done = false;

  constructor(
    make: Make<Answer>,
    private readonly forget: () => void,
  ) {
    this.answer = make(this.stop.signal);
    this.answer.then(() => (this.done = true), forget);
  }

  /** Calls back with the answer; an error is told to those who wait. */
  settled(told: (answer: Answer) => void): void {
    this.answer.then(told, () => {});
  }

  wait(signal?: AbortSignal): Promise<Answer> {
    this.waiting++;
    signal?.addEventListener("abort", () => this.leave(), { once: true });
    return this.answer;
  }

  private leave(): void {
    this.waiting--;
    if (this.waiting > 0 || this.done) return;
    this.forget();
    this.stop.abort();
  }
}

function posting(body: unknown): RequestInit {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

function unreachable(): never {
  throw new SourceError("The server does not answer. Start it again with: clearhead look RUN");
}

async function sentence(answer: Response): Promise<string> {
  const told = (await answer.json().catch(() => ({}))) as { error?: string };
  return told.error ?? `The server answered ${answer.status} and gave no reason.`;
}

function sizes(answer: Response, ...names: string[]): number[] {
  return names.map((name) => Number(answer.headers.get(name)));
}

const READ = {
  json: (answer: Response): Promise<unknown> => answer.json(),
  sent: (answer: Response): Promise<unknown> => answer.json(),
  matrix: async (answer: Response): Promise<Matrix> => {
    const [rows, columns] = sizes(answer, "X-Rows", "X-Columns");
    return { rows, columns, data: new Float32Array(await answer.arrayBuffer()) };
  },
  thumbs: async (answer: Response): Promise<Thumbs> => {
    const [heads, rows, columns] = sizes(answer, "X-Heads", "X-Rows", "X-Columns");
    return { heads, rows, columns, data: new Uint8Array(await answer.arrayBuffer()) };
  },
};
