import { deflateSync } from "node:zlib";

import { describe, expect, it } from "vitest";

import { RecordedSource } from "../../dev/recorded";
import { EmbeddedSource, inflate, readSaved, type Saved } from "./embedded";
import { thumbByte } from "./thumbs";

const pack = (bytes: Uint8Array): string => deflateSync(bytes).toString("base64");
const floats = (values: number[]): string => pack(new Uint8Array(Float32Array.from(values).buffer));
const N = 9;
const SCALE = 32 ** -0.5;
const EXACT = "decoder.1.attention";
const TILE = { head: 0, level: 0, row: 0, column: 0 } as const;
const demo = new RecordedSource();
const saved = await save();
const page = new EmbeddedSource(readSaved(JSON.stringify(saved)));

/** A page as the Python side writes it, of a recorded trace; one site exact. */
async function save(): Promise<Saved> {
  const meta = await demo.ask("trace", { source: "vier" });
  const weights: Record<string, string> = {};
  for (const site of meta.sites) {
    const bytes: number[] = [];
    for (let head = 0; head < site.n_heads; head++)
      for (const row of await rows(site.name, head)) bytes.push(...row.map((one) => Math.round(one * 255)));
    weights[site.name] = pack(Uint8Array.from(bytes));
  }
  const all = async (role: "query" | "key" | "value"): Promise<string> => {
    const heads = [0, 1, 2, 3].map((head) => demo.ask("vectors", { trace: meta.id, site: EXACT, head, role }));
    return floats((await Promise.all(heads)).flatMap((one) => [...one.data]));
  };
  return {
    version: 1,
    run: await demo.ask("run", {}),
    meta,
    weights,
    allowed: { [EXACT]: pack(causalBits(N)) },
    exact: {
      [EXACT]: {
        query: await all("query"),
        key: await all("key"),
        value: await all("value"),
        scale: [SCALE, SCALE, SCALE, SCALE],
        weighting: { kind: "softmax", temperature: 1 },
        allowed: pack(causalBits(N)),
      },
    },
    readings: await demo.ask("readings", { trace: meta.id }),
    lens: null,
    stream: {},
    boxes: {
      decoder: {
        shared: { "decoder.norm.gamma": floats([2, 3]) },
        widths: { "decoder.norm.mean": 1, "decoder.normed": 2, [`${EXACT}.concat`]: 2 },
        tokens: { "8": floats([0.5, 4, 5, 6, 7]) },
      },
    },
  };
}

/** The weights of a head, query by query. */
async function rows(site: string, head: number): Promise<number[][]> {
  const { id } = await demo.ask("trace", { source: "vier" });
  const tile = await demo.ask("tile", { trace: id, ...TILE, site, head, step: "weight" });
  return Array.from({ length: tile.rows }, (_, n) => [...tile.data].slice(n * tile.columns, (n + 1) * tile.columns));
}

function causalBits(n: number): Uint8Array {
  const bits = new Uint8Array(Math.ceil((n * n) / 8));
  for (let query = 0; query < n; query++)
    for (let key = 0; key <= query; key++) bits[(query * n + key) >> 3] |= 1 << ((query * n + key) & 7);
  return bits;
}

describe("a saved page", () => {
  it("unpacks what zlib packed", async () => {
    expect([...(await inflate(pack(Uint8Array.of(1, 2, 250))))]).toEqual([1, 2, 250]);
  });

  it("has the weights of every head to within half a byte", async () => {
    for (const site of saved.meta.sites) {
      const tile = await page.ask("tile", {
        trace: "",
        site: site.name,
        head: 2,
        step: "weight",
        level: 0,
        row: 0,
        column: 0,
      });
      const expected = (await rows(site.name, 2)).flat();
      tile.data.forEach((value, cell) =>
        expect(Math.abs(value - expected[cell])).toBeLessThanOrEqual(0.5 / 255 + 1e-6),
      );
    }
  });

  it("has the exact arithmetic of a chosen site", async () => {
    const [query, key] = [6, 3];
    const cell = await page.ask("cell", { trace: "", site: EXACT, head: 1, query, key });
    const { id } = await demo.ask("trace", { source: "vier" });
    const expected = await demo.ask("cell", { trace: id, site: EXACT, head: 1, query, key });
    expect(cell.score).toBeCloseTo(expected.score!, 4);
    expect(cell.weight).toBeCloseTo(expected.weight, 5);
    expect(cell.context[0]).toBeCloseTo(expected.context[0], 4);
  });

  it("keeps the mask: the future has no weight and no masked score", async () => {
    const row = await page.ask("row", { trace: "", site: EXACT, head: 0, query: 4 });
    expect(row.masked!.slice(5)).toEqual([null, null, null, null]);
    expect(row.weight.slice(5).every((one) => one === 0)).toBe(true);
    expect(row.allowed!.filter(Boolean)).toHaveLength(5);
  });

  it("the mean is the mean of the heads", async () => {
    const mean = await page.ask("row", { trace: "", site: EXACT, head: "mean", query: 7 });
    const heads = await Promise.all(
      [0, 1, 2, 3].map((head) => page.ask("row", { trace: "", site: EXACT, head, query: 7 })),
    );
    const third = heads.reduce((sum, row) => sum + row.weight[2], 0) / 4;
    expect(mean.weight[2]).toBeCloseTo(third, 6);
  });

  it("small pictures are the weights", async () => {
    const thumbs = await page.ask("thumbs", { trace: "", site: EXACT });
    expect([thumbs.heads, thumbs.rows, thumbs.columns]).toEqual([4, N, N]);
    const row = await page.ask("row", { trace: "", site: EXACT, head: 3, query: 8 });
    expect(thumbs.data[3 * N * N + 8 * N]).toBe(thumbByte(Math.round(row.weight[0] * 255) / 255));
  });

  it("masked cells are told from a weight of 0, in small pictures and in tiles", async () => {
    const thumbs = await page.ask("thumbs", { trace: "", site: EXACT });
    expect([...thumbs.data.subarray(0, N)].slice(1)).toEqual(new Array(N - 1).fill(255));
    const tile = await page.ask("tile", {
      trace: "",
      site: EXACT,
      head: "mean",
      step: "allowed",
      level: 0,
      row: 0,
      column: 0,
    });
    expect([...tile.data.subarray(N, 2 * N)]).toEqual([1, 1, 0, 0, 0, 0, 0, 0, 0]);
    const open = await page.ask("tile", { trace: "", ...TILE, site: "encoder.0.attention", step: "allowed" });
    expect(Math.min(...open.data)).toBe(1);
  });

  it("a query that was turned is there before its turn too", async () => {
    const turn = {
      query: floats(Array.from({ length: 4 * N * 2 }, (_, n) => n)),
      key: floats(Array.from({ length: 4 * N * 2 }, (_, n) => -n)),
      pairs: [[0, 1]] as [number, number][],
      query_positions: Array.from({ length: N }, (_, n) => n),
      key_positions: Array.from({ length: N }, (_, n) => n),
      query_angles: floats(Array.from({ length: N }, (_, n) => n / 10)),
      key_angles: floats(Array.from({ length: N }, (_, n) => n / 20)),
    };
    const turning = new EmbeddedSource({ ...saved, exact: { [EXACT]: { ...saved.exact[EXACT], turn } } });
    const cell = await turning.ask("cell", { trace: "", site: EXACT, head: 1, query: 7, key: 3 });
    expect(cell.turn).toMatchObject({ query: [32, 33], key: [-24, -25], query_position: 7, key_position: 3 });
    expect(cell.turn!.query_angles[0]).toBeCloseTo(0.7);
    expect((await page.ask("cell", { trace: "", site: EXACT, head: 1, query: 7, key: 3 })).turn).toBeNull();
  });

  it("has the weights that it cannot compute as they were", async () => {
    const weights = Array.from({ length: 4 * N * N }, (_, cell) => cell / 400);
    const exact = { ...saved.exact[EXACT], weighting: null, weight: floats(weights) };
    const meta = structuredClone(saved.meta);
    meta.sites.find((site) => site.name === EXACT)!.arithmetic.kind = "rows";
    const own = new EmbeddedSource({ ...saved, meta, exact: { [EXACT]: exact } });
    const row = await own.ask("row", { trace: "", site: EXACT, head: 2, query: 7 });
    row.weight.forEach((one, key) => expect(one).toBeCloseTo(weights[(2 * N + 7) * N + key], 6));
    expect(row.masked).toEqual((await page.ask("row", { trace: "", site: EXACT, head: 2, query: 7 })).masked);
    expect(await own.ask("cell", { trace: "", site: EXACT, head: 2, query: 7, key: 3 })).toMatchObject({
      kind: "rows",
      exponential: null,
      total: null,
    });
  });

  it("says in words what it does not hold", async () => {
    await expect(
      page.ask("cell", { trace: "", site: "encoder.0.attention", head: 0, query: 0, key: 0 }),
    ).rejects.toThrow(/only the weights of encoder.0.attention/);
    await expect(page.ask("decode", {} as never)).rejects.toThrow(/clearhead look/);
    await expect(page.ask("trace", { source: "another" })).rejects.toThrow(/views 1 to 4/);
    expect(() => readSaved("")).toThrow(/clearhead trace/);
  });
});

describe("the boxes of a saved page", () => {
  const asked = { key: 1, head: 2 };

  it("have the numbers of the tokens it holds", async () => {
    const { values } = await page.ask("box", { trace: "", ...asked, box: "decoder.norm", token: 8 });
    expect(values).toEqual({ "decoder.norm.mean": [0.5], "decoder.normed": [4, 5], "decoder.norm.gamma": [2, 3] });
  });

  it("say of other tokens which there are", async () => {
    const absent = page.ask("box", { trace: "", ...asked, box: "decoder.0.feed_forward", token: 3 });
    await expect(absent).rejects.toThrow(/for the tokens 8 of the decoder/);
  });

  it("have the heads of an exact site for every token, as far as they were compared as they are", async () => {
    const { values } = await page.ask("box", { trace: "", ...asked, box: EXACT, token: 3 });
    const [row] = await rows(EXACT, 2).then((all) => [all[3]]);
    expect(values[`${EXACT}.weight`]).toHaveLength(N);
    values[`${EXACT}.weight`].forEach((one, key) => expect(one).toBeCloseTo(row[key], 5));
    expect(values).not.toHaveProperty([`${EXACT}.query`]);
    expect(values).not.toHaveProperty([`${EXACT}.concat`]);
  });

  it("have no products: the weights are not on it", async () => {
    await expect(page.ask("terms", {} as never)).rejects.toThrow(/weights of the model are not on this page/);
  });
});
