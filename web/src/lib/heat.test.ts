import { expect, it } from "vitest";

import { clip, Heat, type Inks, rowNames } from "./heat";
import type { TileStore } from "./tilestore";

const LETTER = 7;
const none = { get: () => undefined, want: () => undefined } as unknown as TileStore;

/** What a map of n tokens writes along its sides, in the order it does. */
function labels(n: number, token: (place: number) => string, size = { width: 480, height: 480 }): string[] {
  const written: string[] = [];
  const measured = (text: string): { width: number } => ({ width: text.length * LETTER });
  const context = new Proxy(
    {},
    {
      get: (_, name) =>
        name === "fillText"
          ? (text: string) => written.push(text)
          : name === "measureText"
            ? measured
            : () => undefined,
      set: () => true,
    },
  ) as CanvasRenderingContext2D;
  const tokens = Array.from({ length: n }, (_, place) => token(place));
  const heat = new Heat(tokens, tokens);
  heat.resize(size.width, size.height, (text) => text.length * LETTER);
  heat.draw(context, { numbers: none, mask: null }, 1, {} as Inks, { query: null, key: null });
  return written;
}

it.each([
  [400, 480],
  [1500, 480],
  [400, 260],
])("of %i short tokens at %i pixels every few are labelled, and no label is cut", (n, width) => {
  const written = labels(n, (place) => "ab"[place % 2], { width, height: width });
  expect(written.filter((text) => text.includes("…"))).toEqual([]);
  const places = written.map(Number);
  const rows = places.slice(0, places.lastIndexOf(0));
  expect(rows.length).toBeGreaterThan(4);
  expect([1, 2, 5, 10, 20, 50, 100, 200]).toContain(rows[1] - rows[0]);
  rows.slice(1).forEach((place, index) => expect(place - rows[index]).toBe(rows[1] - rows[0]));
});

it("where there is room every token has its name", () => {
  const written = labels(12, (place) => `token${place}`);
  expect(written).toEqual([...Array(12).keys(), ...Array(12).keys()].map((place) => `token${place}`));
});

it("names a row by what is read and written there, and shortens both", () => {
  expect(rowNames(["a", "\u2581b"], null)).toEqual(["a", "·b"]);
  const [name] = rowNames(["<s>"], ["twenty"]);
  const letters = (text: string): string => text.replace(/[\u2068\u2069]/g, "");
  expect(letters(name)).toBe("<s> → twenty");
  expect(letters(clip(name, 9, (text) => letters(text).length))).toBe("<s> → tw…");
});
