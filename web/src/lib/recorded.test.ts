import { deflateSync } from "node:zlib";
import { describe, expect, it } from "vitest";

import { RecordedSource } from "./recorded";

const packed = (...numbers: number[]): string => deflateSync(Uint8Array.from(numbers)).toString("base64");
const page = new RecordedSource({
  run: { name: "demo" },
  trace: { id: "a", source: "vier" },
  'tile {"head":1,"site":"encoder.0.attention","step":"weight"}': { rows: 1, columns: 3, bytes: packed(0, 51, 255) },
  'thumbs {"site":"encoder.0.attention"}': { rows: 1, columns: 1, heads: 2, bytes: packed(7, 255) },
  'readings {"site":"encoder.0.attention"}': { "encoder.0.attention": { entropy: [1] } },
});
const at = { trace: "a", site: "encoder.0.attention" };

describe("a page of recorded answers", () => {
  it("gives weights in parts of 255 and thumbnails as they are", async () => {
    const tile = await page.ask("tile", { ...at, head: 1, step: "weight", level: 0, row: 0, column: 0 });
    expect([...tile.data]).toEqual([0, Math.fround(0.2), 1]);
    expect([tile.rows, tile.columns]).toEqual([1, 3]);
    expect(await page.ask("thumbs", at)).toEqual({ rows: 1, columns: 1, heads: 2, data: Uint8Array.of(7, 255) });
  });

  it("gives the same readings however many rows would be enough", async () => {
    expect(await page.ask("readings", { ...at, rows: 64 })).toEqual(await page.ask("readings", at));
  });

  it("says what it has where it is asked for something else", async () => {
    expect(await page.ask("trace", { source: "vier" })).toMatchObject({ id: "a" });
    await expect(page.ask("trace", { source: "fünf" })).rejects.toThrow("weights of one text");
    await expect(page.ask("row", { ...at, head: 1, query: 0 })).rejects.toThrow("open the run: clearhead look RUN");
  });
});
