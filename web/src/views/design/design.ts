/** A head designed by hand: what each word's key says, what each query asks for, and which places are wanted. */

import { dot } from "../../lib/arithmetic";
import { t } from "../../text";

export interface KeyRow {
  word: string;
  vector: number[];
}

export interface QueryRow extends KeyRow {
  /** The words it is meant to find. */
  asks: string[];
}

export interface Design {
  dimensions: number;
  keys: KeyRow[];
  queries: QueryRow[];
  /** What each word of the keys gives where it is looked at. */
  values: KeyRow[];
  /** How much each part counts; 0 leaves it out. */
  content: number;
  near: number;
  fixed: number;
  /** The wanted place, counted from the query's own: −1 is the one before. */
  offset: number;
  /** The wanted place, counted from the start. */
  place: number;
}

/** What a design is for: the tokens that ask and those that answer, and who may look at whom. */
export interface Scene {
  queries: string[];
  keys: string[];
  allowed: (query: number, key: number) => boolean;
}

export type Preset = "previous" | "first" | "same" | "looks";

export const PRESETS: Record<Preset, string> = t.design.presets;

export const MOST_WORDS = 8;
/** A goal’s words all have a row. */
export const MOST_ROWS = 12;
export const DIMENSIONS = [2, 3, 4, 5, 6] as const;

export function distinct(tokens: readonly string[]): string[] {
  return [...new Set(tokens)];
}

/** So many directions, as far apart as they come: the axes, their opposites, then those between two axes. */
export function directions(count: number, dimensions: number): number[][] {
  const axis = (at: number, size: number): number[] => unit(dimensions, [[at, size]]);
  const made = [1, -1].flatMap((size) => Array.from({ length: dimensions }, (_, at) => axis(at, size)));
  for (let a = 0; a < dimensions; a++) for (let b = a + 1; b < dimensions; b++) made.push(...between(dimensions, a, b));
  return Array.from({ length: count }, (_, index) => made[index % made.length]);
}

/** The design of a ready head for these tokens. */
export function preset(kind: Preset, scene: Scene, pair?: { from: string; to: string }): Design {
  const design = plain(scene, pair);
  if (kind === "previous") return { ...design, content: 0, near: 1, offset: -1 };
  if (kind === "first") return { ...design, content: 0, fixed: 1, place: 0 };
  if (kind === "same") return asking(design, (word) => [word]);
  return asking(design, (word) => (word === pair?.from ? [pair.to] : []));
}

export function pairOf(scene: Scene): { from: string; to: string } {
  const real = scene.queries.filter((word) => !/^<.*>$/.test(word));
  return { from: real.at(0) ?? scene.queries[0] ?? "", to: scene.keys[0] ?? "" };
}

/** What is asked for gives the query: the sum of the keys it is meant to find. */
export function asked(design: Design, row: number, asks: string[]): Design {
  const known = asks.filter((word) => design.keys.some((key) => key.word === word));
  return { ...design, queries: design.queries.with(row, queryOf(design, design.queries[row].word, known)) };
}

export function withDimensions(design: Design, dimensions: number): Design {
  const found = directions(design.keys.length, dimensions);
  const keys = design.keys.map(({ word }, index) => ({ word, vector: found[index] }));
  const made = { ...design, dimensions, keys, values: keys };
  return { ...made, queries: design.queries.map(({ word, asks }) => queryOf(made, word, asks)) };
}

export function withNumber(
  design: Design,
  table: "keys" | "queries" | "values",
  row: number,
  at: number,
  to: number,
): Design {
  const changed = design[table].map((one, index) =>
    index === row ? { ...one, vector: one.vector.with(at, to) } : one,
  );
  return { ...design, [table]: changed };
}

export function withWord(design: Design, table: "keys" | "queries", word: string): Design {
  if (design[table].length >= MOST_WORDS || design[table].some((row) => row.word === word)) return design;
  if (table === "queries") return { ...design, queries: [...design.queries, queryOf(design, word, [])] };
  const vector = directions(design.keys.length + 1, design.dimensions)[design.keys.length];
  const added = { word, vector };
  return { ...design, keys: [...design.keys, added], values: [...design.values, added] };
}

export function withoutWord(design: Design, table: "keys" | "queries", word: string): Design {
  const rest = design[table].filter((row) => row.word !== word);
  if (table === "queries") return { ...design, queries: rest as QueryRow[] };
  const queries = design.queries.map((row) => ({ ...row, asks: row.asks.filter((one) => one !== word) }));
  return { ...design, keys: rest, queries, values: design.values.filter((row) => row.word !== word) };
}

/** Every query's score with every key: what is said times what is asked, and the places. */
export function scoresOf(design: Design, scene: Scene): number[][] {
  const keys = new Map(design.keys.map((row) => [row.word, row.vector]));
  const queries = new Map(design.queries.map((row) => [row.word, row.vector]));
  return matrix(scene, (query, key) => {
    const [asks, says] = [queries.get(scene.queries[query]), keys.get(scene.keys[key])];
    const content = design.content === 0 || !asks || !says ? 0 : dot(asks, says);
    return design.content * content + byPlace(design, query, key);
  });
}

/** The keys that each query is meant to find: those asked for most among what it may look at, if any is. */
export function wantedOf(design: Design, scene: Scene): boolean[][] {
  const asks = new Map(design.queries.map((row) => [row.word, new Set(row.asks)]));
  const amount = matrix(scene, (query, key) => {
    if (!scene.allowed(query, key)) return -Infinity;
    const content = asks.get(scene.queries[query])?.has(scene.keys[key]) ? design.content : 0;
    return content + byPlace(design, query, key);
  });
  return amount.map((row) => {
    const most = Math.max(...row);
    return row.map((one) => one > 0 && one > most - 1e-9);
  });
}

/** What each query gets: the values of the words it looks at, times their weights. */
export function outputsOf(weights: readonly ArrayLike<number>[], design: Design, scene: Scene): number[][] {
  const values = new Map(design.values.map((row) => [row.word, row.vector]));
  return weights.map((row) =>
    Array.from({ length: design.dimensions }, (_, at) =>
      scene.keys.reduce((sum, word, key) => sum + (row[key] || 0) * (values.get(word)?.[at] ?? 0), 0),
    ),
  );
}

/** The scores with −inf where a query may not look. */
export function maskedOf(scores: number[][], scene: Scene): number[][] {
  return scores.map((row, query) => row.map((score, key) => (scene.allowed(query, key) ? score : -Infinity)));
}

function byPlace(design: Design, query: number, key: number): number {
  return (key === query + design.offset ? design.near : 0) + (key === design.place ? design.fixed : 0);
}

function plain(scene: Scene, pair?: { from: string; to: string }): Design {
  const first = (tokens: string[], word?: string): string[] =>
    distinct(word === undefined ? tokens : [...tokens.filter((one) => one === word), ...tokens]).slice(0, MOST_WORDS);
  const queries = inOrder(first(scene.queries, pair?.from), scene.queries);
  const words = inOrder(first(scene.keys, pair?.to), scene.keys);
  const dimensions = Math.min(6, Math.max(2, words.length));
  const found = directions(words.length, dimensions);
  const keys = words.map((word, index) => ({ word, vector: found[index] }));
  return {
    dimensions,
    keys,
    values: keys,
    queries: queries.map((word) => ({ word, vector: unit(dimensions, []), asks: [] })),
    content: 1,
    near: 0,
    fixed: 0,
    offset: -1,
    place: 0,
  };
}

function inOrder(words: string[], tokens: string[]): string[] {
  return words.toSorted((a, b) => tokens.indexOf(a) - tokens.indexOf(b));
}

function asking(design: Design, asks: (word: string) => string[]): Design {
  return design.queries.reduce((made, { word }, row) => asked(made, row, asks(word)), design);
}

function queryOf(design: Design, word: string, asks: string[]): QueryRow {
  const sum = unit(design.dimensions, []);
  for (const key of design.keys) if (asks.includes(key.word)) key.vector.forEach((part, at) => (sum[at] += part));
  return { word, vector: sum.map(neat), asks };
}

function unit(dimensions: number, parts: [number, number][]): number[] {
  const made = new Array<number>(dimensions).fill(0);
  for (const [at, size] of parts) made[at] = size;
  return made;
}

/** The four directions halfway between two axes. */
function between(dimensions: number, a: number, b: number): number[][] {
  const HALF = 0.71;
  const signs = [
    [1, 1],
    [1, -1],
    [-1, 1],
    [-1, -1],
  ];
  return signs.map(([one, other]) =>
    unit(dimensions, [
      [a, one * HALF],
      [b, other * HALF],
    ]),
  );
}

function neat(value: number): number {
  return Math.round(value * 1e6) / 1e6;
}

function matrix(scene: Scene, cell: (query: number, key: number) => number): number[][] {
  return scene.queries.map((_, query) => scene.keys.map((_, key) => cell(query, key)));
}
