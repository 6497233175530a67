/** The source of a live page: asks the engine in its worker, and remembers what was answered lately. */

import { Cache } from "../lib/cache";
import {
  type BoxRequest,
  type ContextRequest,
  type DecodeRequest,
  type HeadChoice,
  type Meta,
  type NeuronsRequest,
  type Run,
  type SideName,
  type Source,
  SourceError,
  type TermsRequest,
  type TileRequest,
  type TraceRequest,
  type VectorRequest,
  type ViewName,
} from "../lib/source";
import type { SampleRequest } from "./sample";
import type { Answered, Question, Setup } from "./worker";

export const VIEWS: readonly ViewName[] = [
  "model",
  "heads",
  "head",
  "steps",
  "similarity",
  "context",
  "positions",
  "decoding",
  "intervene",
  "spaces",
  "neurons",
  "embeddings",
];
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

  ask<Answer>(method: string, given: unknown[], signal?: AbortSignal): Promise<Answer> {
    const number = ++this.count;
    return new Promise<Answer>((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason as Error);
      this.waiting.set(number, { resolve: resolve as Waiting["resolve"], reject });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(number)) return;
        this.port.postMessage({ stop: number });
        reject(signal.reason as Error);
      });
      this.port.postMessage({ number, method, given: plain(given) } satisfies Question);
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
function plain(given: unknown[]): unknown[] {
  return given.map((one) =>
    typeof one === "object" && one !== null ? (JSON.parse(JSON.stringify(one)) as unknown) : one,
  );
}

/** What the page's sources share: the way to the worker, and answers that are not asked for again. */
class Shared {
  readonly line: Line;
  readonly known = new Cache<Promise<unknown>>(REMEMBERED);
  /** What each trace was asked with: the engine keeps only the last few. */
  readonly requests = new Cache<TraceRequest>(64);

  constructor(
    readonly run: Run,
    port: Port,
  ) {
    this.line = new Line(port);
  }
}

export class LiveSource implements Source {
  readonly views = VIEWS;

  private constructor(
    private readonly shared: Shared,
    private readonly signal?: AbortSignal,
  ) {}

  static open(port: Port, setup: Setup): LiveSource {
    port.postMessage(setup);
    return new LiveSource(new Shared(setup.data.run, port));
  }

  during(signal: AbortSignal): LiveSource {
    return new LiveSource(this.shared, signal);
  }

  exact(): boolean {
    return true;
  }

  async run(): Promise<Run> {
    return this.shared.run;
  }

  async trace(request: TraceRequest): Promise<Meta> {
    const meta = await this.once<Meta>("trace", [request]);
    this.shared.requests.set(meta.id, request);
    return meta;
  }

  tile = (id: string, request: TileRequest): Promise<never> => this.of(id, "tile", request);
  thumbs = (id: string, site: string): Promise<never> => this.of(id, "thumbs", site);
  row = (id: string, site: string, head: HeadChoice, query: number): Promise<never> =>
    this.of(id, "row", site, head, query);
  column = (id: string, site: string, head: HeadChoice, key: number): Promise<never> =>
    this.of(id, "column", site, head, key);
  cell = (id: string, site: string, head: number, query: number, key: number): Promise<never> =>
    this.of(id, "cell", site, head, query, key);
  vectors = (id: string, request: VectorRequest): Promise<never> => this.of(id, "vectors", request);
  readings = (id: string, site?: string, rows?: number): Promise<never> => this.of(id, "readings", site, rows);
  lens = (id: string): Promise<never> => this.of(id, "lens");
  effects = (id: string, site: string): Promise<never> => this.of(id, "effects", site);
  stream = (id: string, side: SideName): Promise<never> => this.of(id, "stream", side);
  spaces = (id: string, site: string, head: number, places: readonly number[]): Promise<never> =>
    this.of(id, "spaces", site, head, places);
  box = (id: string, request: BoxRequest): Promise<never> => this.of(id, "box", request);
  terms = (id: string, request: TermsRequest): Promise<never> => this.of(id, "terms", request);
  context = (request: ContextRequest): Promise<never> => this.once("context", [request]);
  positions = (n: number): Promise<never> => this.once("positions", [n]);
  decode = (request: DecodeRequest): Promise<never> => this.once("decode", [request]);
  sample = (request: SampleRequest): Promise<never> => this.once("sample", [request]);
  neurons = (id: string, request: NeuronsRequest): Promise<never> => this.of(id, "neurons", request);
  embeddings = (table: string | null, step: number | null): Promise<never> => this.once("embeddings", [table, step]);
  neighbours = (table: string, token: number, step: number | null): Promise<never> =>
    this.once("neighbours", [table, token, step]);
  sequence = absent;
  tokenize = absent;
  sentence = absent;
  curves = absent;

  /** An answer about a trace; one that the engine has let go is made anew first. */
  private async of<Answer>(id: string, method: string, ...given: unknown[]): Promise<Answer> {
    try {
      return await this.once<Answer>(method, [id, ...given]);
    } catch (error) {
      const request = this.shared.requests.get(id);
      if (!(error instanceof SourceError) || error.status !== GONE || request === undefined) throw error;
      await this.shared.line.ask("trace", [request]);
      return this.once<Answer>(method, [id, ...given]);
    }
  }

  /** An answer that is asked for once; with a signal it may be given up while nobody else waits for it. */
  private once<Answer>(method: string, given: unknown[]): Promise<Answer> {
    const name = JSON.stringify([method, ...given]);
    const known = this.shared.known.get(name) as Promise<Answer> | undefined;
    if (known !== undefined) return known.catch((error: unknown) => this.again(error, name, method, given));
    const made = this.shared.line.ask<Answer>(method, given, this.signal);
    this.shared.known.set(name, made);
    made.catch(() => this.shared.known.delete(name));
    return made;
  }

  /** Where somebody else gave up what this one waits for too, it is asked again. */
  private again<Answer>(error: unknown, name: string, method: string, given: unknown[]): Promise<Answer> {
    if (error instanceof SourceError || this.signal?.aborted) throw error;
    this.shared.known.delete(name);
    return this.once(method, given);
  }
}

function absent(): Promise<never> {
  return Promise.reject(new SourceError("This page does not have that view. Open the run: clearhead look RUN"));
}
