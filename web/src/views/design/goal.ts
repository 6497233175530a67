/** A design as an answer to an exercise: a query, key and value for each word at each place, and one to begin with. */

import type { Goal } from "../../lib/source";
import { type Design, directions, distinct } from "./design";
import { packed } from "./written";

export function wordsOf(goal: Pick<Goal, "cases">): string[] {
  return distinct(goal.cases.map(([word]) => word));
}

/** Every word with a key of its own; queries and values say nothing yet. */
export function begin(goal: Goal): Design {
  const words = wordsOf(goal);
  const dimensions = Math.min(6, Math.max(2, words.length));
  const nothing = words.map((word) => ({ word, vector: new Array<number>(dimensions).fill(0) }));
  const found = directions(words.length, dimensions);
  return {
    dimensions,
    keys: words.map((word, index) => ({ word, vector: found[index] })),
    queries: nothing.map((row) => ({ ...row, asks: [] })),
    values: nothing,
    content: 1,
    near: 0,
    fixed: 0,
    offset: -1,
    place: 0,
  };
}

/** What the address says where a goal is begun: its words, and its longest sentence. */
export function beginning(goal: Goal): Record<string, string> {
  const longest = goal.sentences.reduce((long, one) => (one.length > long.length ? one : long), []);
  return { goal: goal.asked.name, design: packed(begin(goal)), mine: longest.join(" ") };
}

/** The vectors that give the design's scores, times the scale, after a head has divided by √d: what the words say, then
 * a direction for each place. */
export function vectorsOf(design: Design, scale: number, goal: Goal): Record<string, number[][]> {
  const places = Math.max(...goal.cases.map(([, place]) => place)) + 1;
  const factor = scale * Math.sqrt(design.dimensions + places);
  const at = (place: number, size: number): number[] =>
    Array.from({ length: places }, (_, other) => (other === place ? size : 0));
  const said = (table: "keys" | "queries" | "values", word: string): number[] =>
    design[table].find((row) => row.word === word)?.vector ?? new Array<number>(design.dimensions).fill(0);
  const vectors: Record<string, number[][]> = {
    query: goal.cases.map(([word, place]) => {
      const near = at(place + design.offset, design.near);
      const fixed = at(design.place, design.fixed);
      const asks = said("queries", word).map((number) => number * design.content);
      return [...asks, ...near.map((size, other) => size + fixed[other])].map((number) => number * factor);
    }),
    key: goal.cases.map(([word, place]) => [...said("keys", word), ...at(place, 1)]),
    value: goal.cases.map(([word]) => said("values", word).slice(0, Math.max(1, goal.outputs))),
  };
  return Object.fromEntries(goal.roles.map((role) => [role, vectors[role]]));
}
