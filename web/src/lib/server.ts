/** The source behind `clearhead look`: relative addresses, so that the token in the page's own address goes along. */

import { Cache } from "./cache";
import {
  type BoxNumbers,
  type BoxRequest,
  type BoxTerms,
  type Cell,
  type Column,
  type ContextAnswer,
  type ContextRequest,
  type Curves,
  type Decoded,
  type DecodeRequest,
  type Effects,
  type EmbeddingMap,
  type HeadChoice,
  type Lens,
  type Matrix,
  type Meta,
  type Neighbours,
  type Neurons,
  type NeuronsRequest,
  type Positions,
  type Readings,
  type Row,
  type Run,
  type Sampled,
  type SampleRequest,
  type Sentence,
  type Sequence,
  type SideName,
  type Source,
  SourceError,
  type Spaces,
  type Stream,
  type TermsRequest,
  type Thumbs,
  type TileRequest,
  type TokenizedText,
  type TraceRequest,
  type VectorRequest,
  type ViewName,
} from "./source";

const GONE = 410;
const ALL: readonly ViewName[] = [
  "model",
  "heads",
  "head",
  "steps",
  "similarity",
  "context",
  "positions",
  "decoding",
  "intervene",
  "training",
  "design",
  "spaces",
  "sequence",
  "neurons",
  "embeddings",
  "tokens",
];

type Values = Record<string, string | number>;
type Make<Answer> = (signal: AbortSignal) => Promise<Answer>;

/** What was answered lately, and is not asked for again. */
class Kept {
  readonly requests = new Cache<TraceRequest>(64);
  /** One text at every step of a film, and a few more. */
  readonly metas = new Cache<Shared<Meta>>(48);
  readonly small = new Cache<Shared<unknown>>(1000);
  /** The map and what stands beside it ask for the same ones, and a film has those of every step. By their bytes. */
  readonly tiles = new Cache<Shared<Matrix>>(32 * 2 ** 20);
}

export class ServerSource implements Source {
  readonly views = ALL;
  readonly everyStep = true;
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

  exact(): boolean {
    return true;
  }

  run(): Promise<Run> {
    return this.json("run", {}, { signal: this.signal });
  }

  trace(request: TraceRequest): Promise<Meta> {
    return this.remember(this.kept.metas, JSON.stringify(request), (signal) => this.post(request, signal));
  }

  tile(id: string, request: TileRequest): Promise<Matrix> {
    const make = async (signal: AbortSignal): Promise<Matrix> =>
      matrix(await this.ofTrace(id, "tile", { ...request }, signal));
    return this.remember(this.kept.tiles, `${id} ${JSON.stringify(request)}`, make, (tile) => tile.data.byteLength);
  }

  thumbs(id: string, site: string): Promise<Thumbs> {
    return this.once(`thumbs ${id} ${site}`, async (signal) => {
      const answer = await this.ofTrace(id, "thumbs", { site }, signal);
      const [heads, rows, columns] = ["X-Heads", "X-Rows", "X-Columns"].map((name) => Number(answer.headers.get(name)));
      return { heads, rows, columns, data: new Uint8Array(await answer.arrayBuffer()) };
    });
  }

  row(id: string, site: string, head: HeadChoice, query: number): Promise<Row> {
    return this.part(id, "row", { site, head, query });
  }

  column(id: string, site: string, head: HeadChoice, key: number): Promise<Column> {
    return this.part(id, "column", { site, head, key });
  }

  cell(id: string, site: string, head: number, query: number, key: number): Promise<Cell> {
    return this.part(id, "cell", { site, head, query, key });
  }

  vectors(id: string, request: VectorRequest): Promise<Matrix> {
    const name = `vectors ${id} ${JSON.stringify(request)}`;
    return this.once(name, async (signal) => matrix(await this.ofTrace(id, "vectors", { ...request }, signal)));
  }

  readings(id: string, site?: string, rows?: number): Promise<Record<string, Readings>> {
    const values = { ...(site === undefined ? {} : { site }), ...(rows === undefined ? {} : { rows }) };
    return this.part(id, "readings", values);
  }

  lens(id: string): Promise<Lens> {
    return this.part(id, "lens");
  }

  effects(id: string, site: string): Promise<Effects> {
    return this.part(id, "effects", { site });
  }

  stream(id: string, side: SideName): Promise<Stream> {
    return this.part(id, "stream", { side });
  }

  spaces(id: string, site: string, head: number, places: readonly number[]): Promise<Spaces> {
    return this.part(id, "spaces", { site, head, places: places.join(",") });
  }

  sequence(id: string, site: string, head: number, query: number, columns: number): Promise<Sequence> {
    return this.part(id, "sequence", { site, head, query, columns });
  }

  sentence(token: number): Promise<Sentence> {
    return this.once(`sentence ${token}`, (signal) => this.json("sentence", { token }, { signal }));
  }

  box(id: string, request: BoxRequest): Promise<BoxNumbers> {
    return this.part(id, "box", { ...request });
  }

  terms(id: string, request: TermsRequest): Promise<BoxTerms> {
    return this.part(id, "terms", { ...request });
  }

  context(request: ContextRequest): Promise<ContextAnswer> {
    return this.once(`context ${JSON.stringify(request)}`, (signal) =>
      this.json("context", {}, { signal, body: request }),
    );
  }

  positions(n: number, step: number | null): Promise<Positions> {
    const values = { n, ...(step === null ? {} : { step }) };
    return this.once(`positions ${JSON.stringify(values)}`, (signal) => this.json("positions", values, { signal }));
  }

  decode(request: DecodeRequest): Promise<Decoded> {
    return this.once(`decode ${JSON.stringify(request)}`, (signal) =>
      this.json("decode", {}, { signal, body: request }),
    );
  }

  curves(after: number): Promise<Curves> {
    return this.json("curves", { after }, { signal: this.signal });
  }

  sample(request: SampleRequest): Promise<Sampled> {
    return this.once(`sample ${JSON.stringify(request)}`, (signal) =>
      this.json("sample", {}, { signal, body: request }),
    );
  }

  neurons(id: string, request: NeuronsRequest): Promise<Neurons> {
    return this.part(id, "neurons", { ...request });
  }

  embeddings(table: string | null, step: number | null): Promise<EmbeddingMap> {
    const values = { ...(table === null ? {} : { table }), ...(step === null ? {} : { step }) };
    return this.once(`embeddings ${JSON.stringify(values)}`, (signal) => this.json("embeddings", values, { signal }));
  }

  neighbours(table: string, token: number, step: number | null): Promise<Neighbours> {
    const values = { table, token, ...(step === null ? {} : { step }) };
    return this.once(`neighbours ${JSON.stringify(values)}`, (signal) => this.json("neighbours", values, { signal }));
  }

  tokenize(text: string, field: string | null): Promise<TokenizedText> {
    const body = { text, ...(field === null ? {} : { field }) };
    return this.once(`tokenize ${JSON.stringify(body)}`, (signal) => this.json("tokenize", {}, { signal, body }));
  }

  private async post(request: TraceRequest, signal: AbortSignal): Promise<Meta> {
    const meta = await this.json<Meta>("trace", {}, { signal, body: request });
    this.kept.requests.set(meta.id, request);
    return meta;
  }

  private part<Answer>(id: string, what: string, values: Values = {}): Promise<Answer> {
    const name = `${what} ${id} ${JSON.stringify(values)}`;
    return this.once(name, async (signal) => (await (await this.ofTrace(id, what, values, signal)).json()) as Answer);
  }

  private once<Answer>(name: string, make: Make<Answer>): Promise<Answer> {
    return this.remember(this.kept.small as Cache<Shared<Answer>>, name, make);
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
  private async ofTrace(id: string, what: string, values: Values, signal: AbortSignal): Promise<Response> {
    try {
      return await this.ask(`trace/${id}/${what}`, values, { signal });
    } catch (error) {
      const request = this.kept.requests.get(id);
      if (!(error instanceof SourceError) || error.status !== GONE || request === undefined) throw error;
      const meta = await this.post(request, signal);
      return this.ask(`trace/${meta.id}/${what}`, values, { signal });
    }
  }

  private async json<Answer>(path: string, values: Values, more: More): Promise<Answer> {
    return (await (await this.ask(path, values, more)).json()) as Answer;
  }

  private async ask(path: string, values: Values, { signal, body }: More): Promise<Response> {
    const asked = new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)])).toString();
    const address = this.base + path + (asked && `?${asked}`);
    const init = { signal, ...(body === undefined ? {} : posting(body)) };
    const answer = await this.fetcher(address, init).catch(unreachable);
    if (!answer.ok) throw new SourceError(await sentence(answer), answer.status);
    return answer;
  }
}

interface More {
  signal?: AbortSignal;
  body?: unknown;
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

async function matrix(answer: Response): Promise<Matrix> {
  const [rows, columns] = ["X-Rows", "X-Columns"].map((name) => Number(answer.headers.get(name)));
  return { rows, columns, data: new Float32Array(await answer.arrayBuffer()) };
}
