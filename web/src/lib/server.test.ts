import { expect, it } from "vitest";

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
  await source.trace({ source: "x" });
  expect(await source.row("a", "encoder.0.attention", 0, 2)).toEqual({ weight: [1] });
  expect(asked).toEqual([
    "POST api/trace",
    "GET api/trace/a/row?site=encoder.0.attention&head=0&query=2",
    "POST api/trace",
    "GET api/trace/a/row?site=encoder.0.attention&head=0&query=2",
  ]);
});

it("asks the same only once, and again after a failure", async () => {
  const { source, asked } = served([json({ error: "no such site" }, 404), json({ weight: [1] })]);
  await expect(source.row("a", "s", 0, 0)).rejects.toThrow("no such site");
  await source.row("a", "s", 0, 0);
  await source.row("a", "s", 0, 0);
  expect(asked).toHaveLength(2);
});

it("reads numbers with their shape", async () => {
  const body = new Float32Array([1, 2, 3, 4, 5, 6]).buffer;
  const { source } = served([() => new Response(body, { headers: { "X-Rows": "2", "X-Columns": "3" } })]);
  const tile = await source.tile("a", { site: "s", head: "mean", step: "weight", level: 0, row: 0, column: 0 });
  expect([tile.rows, tile.columns, tile.data[5]]).toEqual([2, 3, 6]);
});

it("says in words that nobody answers", async () => {
  const { source } = served([
    () => {
      throw new TypeError("failed");
    },
  ]);
  await expect(source.run()).rejects.toThrow(/does not answer/);
});
