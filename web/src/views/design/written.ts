/** A design as a word of the address, and back; what cannot be read is none. */

import { type Design, DIMENSIONS, type KeyRow, MOST_ROWS, type QueryRow } from "./design";

type Row = [string, ...number[]];
type Packed = [number, Row[], [string, string[], ...number[]][], number, number, number, number, number, Row[]?];

export function packed(design: Design): string {
  const { content, near, fixed, offset, place } = design;
  const made: Packed = [
    design.dimensions,
    design.keys.map(({ word, vector }) => [word, ...vector]),
    design.queries.map(({ word, asks, vector }) => [word, asks, ...vector]),
    ...([content, near, fixed, offset, place] as const),
    design.values.map(({ word, vector }) => [word, ...vector]),
  ];
  return JSON.stringify(made);
}

export function unpacked(text: string | null): Design | null {
  if (text === null) return null;
  try {
    const [dimensions, keys, queries, content, near, fixed, offset, place, values] = JSON.parse(text) as Packed;
    const rows = (all: Row[]): KeyRow[] => all.map(([word, ...vector]) => ({ word, vector }));
    const design: Design = {
      dimensions,
      keys: rows(keys),
      // An address from before there were values: each word gives what its key says.
      values: rows(values ?? keys),
      queries: queries.map(([word, asks, ...vector]): QueryRow => ({ word, asks, vector })),
      ...{ content, near, fixed, offset, place },
    };
    return sound(design) ? design : null;
  } catch {
    return null;
  }
}

/** A number that was typed: null where it is none. */
export function typed(text: string): number | null {
  const value = Number(text.trim().replace("−", "-").replace(",", "."));
  return text.trim() === "" || !Number.isFinite(value) ? null : Math.min(1e4, Math.max(-1e4, value));
}

function sound(design: Design): boolean {
  const { dimensions, keys, queries, values, content, near, fixed, offset, place } = design;
  const rows = (all: KeyRow[]): boolean =>
    all.length <= MOST_ROWS &&
    all.every(({ word, vector }) => typeof word === "string" && vector.length === dimensions && numbers(vector));
  return (
    (DIMENSIONS as readonly number[]).includes(dimensions) &&
    rows(keys) &&
    rows(queries) &&
    rows(values) &&
    queries.every(({ asks }) => Array.isArray(asks) && asks.every((word) => typeof word === "string")) &&
    numbers([content, near, fixed]) &&
    [offset, place].every(Number.isInteger)
  );
}

function numbers(values: unknown[]): boolean {
  return values.every((value) => Number.isFinite(value));
}
