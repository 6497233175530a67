/** One word's way through the layers, for each place it stands in: names, lines and places on the page. */

import type { ContextAnswer } from "../../lib/source";
import { t } from "../../text";

export type Point = [number, number];

export interface Named {
  /** Which of the texts, counted from 0. */
  text: number;
  /** "A", or "A2" where the text has the word more than once. */
  letter: string;
}

/** A letter for each place of the word: one for each text, with a number where the word stands there again. */
export function named(places: ContextAnswer["places"]): Named[] {
  const texts: string[] = [];
  const seen = new Map<string, number>();
  return places.map(({ text }, place) => {
    if (!texts.includes(text)) texts.push(text);
    const number = texts.indexOf(text);
    const again = (seen.get(text) ?? 0) + 1;
    seen.set(text, again);
    const more = places.some((other, index) => index !== place && other.text === text);
    return { text: number, letter: `${String.fromCharCode(65 + number)}${more ? again : ""}` };
  });
}

export interface Pair {
  one: number;
  other: number;
  /** The cosine after each layer, the embedding first. */
  cosine: number[];
}

export function pairsOf(cosine: readonly (readonly (readonly number[])[])[]): Pair[] {
  const count = cosine[0]?.length ?? 0;
  const pairs: Pair[] = [];
  for (let one = 0; one < count; one++) {
    for (let other = one + 1; other < count; other++) {
      pairs.push({ one, other, cosine: cosine.map((layer) => layer[one][other]) });
    }
  }
  return pairs;
}

/** The lowest end of an axis up to 1 that holds every cosine, in tenths. */
export function lowest(pairs: readonly Pair[]): number {
  const least = Math.min(1, ...pairs.flatMap((pair) => pair.cosine));
  return Math.max(-1, Math.min(0.8, Math.floor(least * 10 - 0.5) / 10));
}

/** Points into a box, both axes by the same factor, in the middle; y upwards becomes y downwards. */
export function fitted(paths: readonly (readonly Point[])[], width: number, height: number, margin: number): Point[][] {
  const all = paths.flat();
  const [left, right] = ends(all.map(([x]) => x));
  const [low, high] = ends(all.map(([, y]) => y));
  const factor = Math.min(
    (width - 2 * margin) / Math.max(right - left, 1e-12),
    (height - 2 * margin) / Math.max(high - low, 1e-12),
  );
  const place = ([x, y]: Point): Point => [
    width / 2 + (x - (left + right) / 2) * factor,
    height / 2 - (y - (low + high) / 2) * factor,
  ];
  return paths.map((path) => path.map(place));
}

/** "embedding", "layer 0": what a layer of the answer is called. */
export function layerName(layer: string): string {
  return /^\d+$/.test(layer) ? t.model.layer(Number(layer)) : t.context.embedding;
}

function ends(values: readonly number[]): [number, number] {
  return values.length === 0 ? [0, 0] : [Math.min(...values), Math.max(...values)];
}
