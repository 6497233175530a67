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
  type HeadChoice,
  type Lens,
  type Matrix,
  type Meta,
  type Positions,
  type Readings,
  type Row,
  type Run,
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
  type TraceRequest,
  type VectorRequest,
  type ViewName,
} from "./source";

const GONE = 410;
const ALL: readonly ViewName[] = [
  "model",
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
];

type Values = Record<string, string | number>;

export class ServerSource implements Source {
  readonly views = ALL;
  private readonly requests = new Cache<TraceRequest>(64);
  private readonly metas = new Cache<Promise<Meta>>(16);
  private readonly small = new Cache<Promise<unknown>>(400);
  private readonly tiles = new Cache<Promise<Matrix>>(8);

  constructor(
    private readonly base = "api/",
    private readonly fetcher: typeof fetch = (...given) => fetch(...given),
  ) {}

  exact(): boolean {
    return true;
  }

  run(): Promise<Run> {
    return this.json("run");
  }

  trace(request: TraceRequest): Promise<Meta> {
    return remember(this.metas, JSON.stringify(request), () => this.post(request));
  }

  /** The last few are kept: the map and what stands beside it ask for the same ones. */
  tile(id: string, request: TileRequest): Promise<Matrix> {
    const name = `${id} ${JSON.stringify(request)}`;
    return remember(this.tiles, name, async () => matrix(await this.ofTrace(id, "tile", { ...request })));
  }

  thumbs(id: string, site: string): Promise<Thumbs> {
    return this.once(`thumbs ${id} ${site}`, async () => {
      const answer = await this.ofTrace(id, "thumbs", { site });
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
    return this.once(name, async () => matrix(await this.ofTrace(id, "vectors", { ...request })));
  }

  readings(id: string, site?: string): Promise<Record<string, Readings>> {
    return this.part(id, "readings", site === undefined ? {} : { site });
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

  sequence(id: string, site: string, head: number, query: number): Promise<Sequence> {
    return this.part(id, "sequence", { site, head, query });
  }

  sentence(token: number): Promise<Sentence> {
    return this.once(`sentence ${token}`, () => this.json("sentence", { token }));
  }

  box(id: string, request: BoxRequest): Promise<BoxNumbers> {
    return this.part(id, "box", { ...request });
  }

  terms(id: string, request: TermsRequest): Promise<BoxTerms> {
    return this.part(id, "terms", { ...request });
  }

  context(request: ContextRequest): Promise<ContextAnswer> {
    return this.once(`context ${JSON.stringify(request)}`, () => this.json("context", {}, request));
  }

  positions(n: number): Promise<Positions> {
    return this.once(`positions ${n}`, () => this.json("positions", { n }));
  }

  decode(request: DecodeRequest): Promise<Decoded> {
    return this.once(`decode ${JSON.stringify(request)}`, () => this.json("decode", {}, request));
  }

  curves(after: number): Promise<Curves> {
    return this.json("curves", { after });
  }

  private async post(request: TraceRequest): Promise<Meta> {
    const meta = await this.json<Meta>("trace", {}, request);
    this.requests.set(meta.id, request);
    return meta;
  }

  private part<Answer>(id: string, what: string, values: Values = {}): Promise<Answer> {
    const name = `${what} ${id} ${JSON.stringify(values)}`;
    return this.once(name, async () => (await (await this.ofTrace(id, what, values)).json()) as Answer);
  }

  private once<Answer>(name: string, make: () => Promise<Answer>): Promise<Answer> {
    return remember(this.small as Cache<Promise<Answer>>, name, make);
  }

  /** Asks about a trace; one the server has let go is asked for again first. */
  private async ofTrace(id: string, what: string, values: Values): Promise<Response> {
    try {
      return await this.ask(`trace/${id}/${what}`, values);
    } catch (error) {
      const request = this.requests.get(id);
      if (!(error instanceof SourceError) || error.status !== GONE || request === undefined) throw error;
      const meta = await this.post(request);
      return this.ask(`trace/${meta.id}/${what}`, values);
    }
  }

  private async json<Answer>(path: string, values: Values = {}, body?: unknown): Promise<Answer> {
    return (await (await this.ask(path, values, body)).json()) as Answer;
  }

  private async ask(path: string, values: Values, body?: unknown): Promise<Response> {
    const asked = new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)])).toString();
    const address = this.base + path + (asked && `?${asked}`);
    const answer = await this.fetcher(address, body === undefined ? undefined : posting(body)).catch(unreachable);
    if (!answer.ok) throw new SourceError(await sentence(answer), answer.status);
    return answer;
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

/** A promise kept under its name; one that fails is forgotten, so that it is tried again. */
function remember<Answer>(cache: Cache<Promise<Answer>>, name: string, make: () => Promise<Answer>): Promise<Answer> {
  const kept = cache.get(name);
  if (kept !== undefined) return kept;
  const made = make();
  cache.set(name, made);
  made.catch(() => cache.delete(name));
  return made;
}
