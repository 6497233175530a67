import { describe, expect, it } from "vitest";

import { ServerSource } from "./server";

function served(answers: ((address: string, init?: RequestInit) => Response)[]): {
  source: ServerSource;
  asked: string[];
} {
  const asked: string[] = [];
  const fetcher = (async (address: string, init?: RequestInit) => {
    asked.push(`${init?.method ?? "GET"} ${address}`);
    return answers.shift()!(address, init);
  }) as typeof fetch;
  return { source: new ServerSource("api/", fetcher), asked };
}

const ROW = { trace: "a", site: "s", head: 0, query: 0 };
const json =
  (value: unknown, status = 200) =>
  (): Response =>
    new Response(JSON.stringify(value), { status });

it("asks for a trace again when the server has let it go", async () => {
  const { source, asked } = served([
    json({ id: "a" }),
    json({ error: "gone" }, 410),
    json({ id: "a" }),
    json({ weight: [1] }),
  ]);
  await source.ask("trace", { source: "x" });
  expect(await source.ask("row", { trace: "a", site: "encoder.0.attention", head: 0, query: 2 })).toEqual({
    weight: [1],
  });
  expect(asked).toEqual([
    "POST api/trace",
    "GET api/trace/a/row?site=encoder.0.attention&head=0&query=2",
    "POST api/trace",
    "GET api/trace/a/row?site=encoder.0.attention&head=0&query=2",
  ]);
});

it("asks the same only once, and again after a failure", async () => {
  const { source, asked } = served([json({ error: "no such site" }, 404), json({ weight: [1] })]);
  await expect(source.ask("row", ROW)).rejects.toThrow("no such site");
  await source.ask("row", ROW);
  await source.ask("row", ROW);
  expect(asked).toHaveLength(2);
});

it("reads numbers with their shape", async () => {
  const body = new Float32Array([1, 2, 3, 4, 5, 6]).buffer;
  const { source } = served([() => new Response(body, { headers: { "X-Rows": "2", "X-Columns": "3" } })]);
  const tile = await source.ask("tile", { trace: "a", site: "s", head: "mean", step: "weight" });
  expect([tile.rows, tile.columns, tile.data[5]]).toEqual([2, 3, 6]);
});

it("says in words that nobody answers", async () => {
  const { source } = served([
    () => {
      throw new TypeError("failed");
    },
  ]);
  await expect(source.ask("run", {})).rejects.toThrow(/does not answer/);
});

describe("a request that several wait for", () => {
  /** Requests that are never answered, each with its signal. */
  function waiting(): { source: ServerSource; signals: AbortSignal[] } {
    const signals: AbortSignal[] = [];
    const fetcher = ((_: string, init: RequestInit) => {
      signals.push(init.signal!);
      return new Promise((_, fail) => init.signal!.addEventListener("abort", () => fail(init.signal!.reason)));
    }) as typeof fetch;
    return { source: new ServerSource("api/", fetcher), signals };
  }

  it("is aborted when none of them waits any longer", async () => {
    const { source, signals } = waiting();
    const [one, other] = [new AbortController(), new AbortController()];
    const rows = [one, other].map(({ signal }) => source.during(signal).ask("row", ROW));
    one.abort();
    expect(signals.map((signal) => signal.aborted)).toEqual([false]);
    other.abort();
    expect(signals.map((signal) => signal.aborted)).toEqual([true]);
    await Promise.all(rows.map((row) => expect(row).rejects.toThrow()));
  });

  it("goes on for one who waits without a signal", () => {
    const { source, signals } = waiting();
    const stop = new AbortController();
    void source
      .during(stop.signal)
      .ask("row", ROW)
      .catch(() => {});
    void source.ask("row", ROW).catch(() => {});
    stop.abort();
    expect(signals.map((signal) => signal.aborted)).toEqual([false]);
  });

  it("is made anew after it was aborted, and not at all where the signal is aborted already", async () => {
    const { source, signals } = waiting();
    const stop = new AbortController();
    const row = source.during(stop.signal).ask("row", ROW);
    stop.abort();
    void source.ask("row", ROW).catch(() => {});
    await expect(row).rejects.toThrow();
    void source.ask("row", ROW).catch(() => {});
    expect(signals.map((signal) => signal.aborted)).toEqual([true, false]);
    await expect(source.during(stop.signal).ask("row", { trace: "a", site: "s", head: 0, query: 1 })).rejects.toThrow(
      /abort/i,
    );
    expect(signals).toHaveLength(2);
  });

  it("is not asked for again after its answer, though all who waited have gone", async () => {
    const { source, asked } = served([json({ weight: [1] })]);
    const stop = new AbortController();
    await source.during(stop.signal).ask("row", ROW);
    stop.abort();
    expect(await source.ask("row", ROW)).toEqual({ weight: [1] });
    expect(asked).toHaveLength(1);
  });
});
