/** The source of a live page: asks the engine in its worker, and remembers what was answered lately. */

import { Cache } from "../lib/cache";
import {
  type Answers,
  type Asks,
  type AskTrace,
  type Meta,
  type QuestionName,
  type RunFacts,
  type Source,
  SourceError,
  type ViewName,
} from "../lib/source";
import { VIEWS } from "../lib/views";
import type { Answered, Question, Setup } from "./worker";

/** What the engine does not answer for; some of them have an answer key in a lesson's page. */
const NEED_THE_RUN: readonly ViewName[] = ["circuit", "design", "exercises", "sequence"];
const REMEMBERED = 400;
const GONE = 410;

/** The worker, or what stands for it in a test. */
export type Port = Pick<Worker, "postMessage" | "addEventListener">;

interface Waiting {
  resolve: (answer: never) => void;
  reject: (error: Error) => void;
}

/** Questions on their way, by number. */
class Line {
  private readonly waiting = new Map<number, Waiting>();
  private count = 0;

  constructor(private readonly port: Port) {
    port.addEventListener("message", (event) => this.hear((event as MessageEvent<Answered>).data));
    port.addEventListener("error", (event) => this.fail((event as ErrorEvent).message || "the page's worker stopped"));
  }

  ask<Name extends QuestionName>(name: Name, asked: Asks<Name>, signal?: AbortSignal): Promise<Answers<Name>> {
    const number = ++this.count;
    return new Promise<Answers<Name>>((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason as Error);
      this.waiting.set(number, { resolve: resolve as Waiting["resolve"], reject });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(number)) return;
        this.port.postMessage({ stop: number });
        reject(signal.reason as Error);
      });
      this.port.postMessage({ number, name, asked: plain(asked) } satisfies Question);
    });
  }

  private hear({ number, answer, error }: Answered): void {
    const one = this.waiting.get(number);
    this.waiting.delete(number);
    if (error === undefined) one?.resolve(answer as never);
    else one?.reject(new SourceError(error.message, error.status));
  }

  private fail(message: string): void {
    for (const { reject } of this.waiting.values()) reject(new SourceError(message));
    this.waiting.clear();
  }
}

/** Without the page's proxies, which cannot be sent. */
function plain<Value>(asked: Value): Value {
  return JSON.parse(JSON.stringify(asked)) as Value;
}

/** What the page's sources share: the way to the worker, and answers that are not asked for again. */
class Shared {
  readonly line: Line;
  readonly known = new Cache<Promise<unknown>>(REMEMBERED);
  /** What each trace was asked with: the engine keeps only the last few. */
  readonly requests = new Cache<AskTrace>(64);

  constructor(
    readonly run: RunFacts,
    readonly views: readonly ViewName[],
    port: Port,
  ) {
    this.line = new Line(port);
  }
}

export class LiveSource implements Source {
  readonly views: readonly ViewName[];
  readonly everyStep: boolean;
  readonly rollout = true;

  private constructor(
    private readonly shared: Shared,
    private readonly signal?: AbortSignal,
  ) {
    this.views = shared.views;
    this.everyStep = shared.run.film.length > 0;
  }

  static open(port: Port, setup: Setup): LiveSource {
    port.postMessage(setup);
    const { run, curves, exercises } = setup.data;
    const absent = curves === null ? [...NEED_THE_RUN, "training"] : NEED_THE_RUN;
    const views = VIEWS.filter((view) => !absent.includes(view) || exercises?.views.includes(view));
    return new LiveSource(new Shared(run, views, port));
  }

  during(signal: AbortSignal): LiveSource {
    return new LiveSource(this.shared, signal);
  }

  /** An answer that is asked for once; about a trace that the engine has let go, the trace is made anew first. */
  async ask<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    if (name === "run") return this.shared.run as Answers<Name>;
    try {
      const answer = await this.once(name, asked);
      if (name === "trace") this.shared.requests.set((answer as Meta).id, asked as AskTrace);
      return answer;
    } catch (error) {
      const request = this.shared.requests.get((asked as { trace?: string }).trace ?? "");
      if (!(error instanceof SourceError) || error.status !== GONE || request === undefined) throw error;
      await this.shared.line.ask("trace", request);
      return this.once(name, asked);
    }
  }

  /** With a signal it may be given up while nobody else waits for it. */
  private once<Name extends QuestionName>(name: Name, asked: Asks<Name>): Promise<Answers<Name>> {
    const key = `${name} ${JSON.stringify(asked)}`;
    const known = this.shared.known.get(key) as Promise<Answers<Name>> | undefined;
    if (known !== undefined) return known.catch((error: unknown) => this.again(error, key, name, asked));
    const made = this.shared.line.ask(name, asked, this.signal);
    this.shared.known.set(key, made);
    made.catch(() => this.shared.known.delete(key));
    return made;
  }

  /** Where somebody else gave up what this one waits for too, it is asked again. */
  private again<Name extends QuestionName>(
    error: unknown,
    key: string,
    name: Name,
    asked: Asks<Name>,
  ): Promise<Answers<Name>> {
    if (error instanceof SourceError || this.signal?.aborted) throw error;
    this.shared.known.delete(key);
    return this.once(name, asked);
  }
}
