/** What two traces have in common, cell by cell and head by head, and what cannot be compared. */

import type { Matrix, Meta, RunFacts, SiteMeta, Thumbs } from "../lib/source";

/** Why a figure of the difference is not there, or how far it may be trusted; words are in text/. */
export type Caveat =
  | "run" // two trainings: heads of the same number need not do the same
  | "tokenizer" // two vocabularies
  | "texts" // other tokens, so that no cell stands for the same pair
  | "outputs" // the same text, but each wrote its own output
  | "site"; // the second has no such site

export interface Shown {
  run: Pick<RunFacts, "name" | "path" | "vocabulary">;
  meta: Pick<Meta, "source" | "sides">;
  site: Pick<SiteMeta, "name" | "query_side" | "key_side"> | null;
}

/** What of two traces can be compared: whether a cell stands for the same query and key in both, and what to beware of. */
export function comparisonOf(one: Shown, other: Shown): { cells: boolean; caveats: Caveat[] } {
  const caveats: Caveat[] = [];
  if (one.run.path !== other.run.path) {
    caveats.push("run");
    if (one.run.vocabulary !== other.run.vocabulary) caveats.push("tokenizer");
  }
  const sides = new Set([...Object.keys(one.meta.sides), ...Object.keys(other.meta.sides)]) as Set<
    "encoder" | "decoder"
  >;
  const same = (side: "encoder" | "decoder"): boolean => sameTokens(one.meta, other.meta, side);
  const { site } = one;
  const found = site !== null && other.site?.name === site.name;
  const cells = found && same(site.query_side) && same(site.key_side);
  if (!found) caveats.push("site");
  else if (!cells) caveats.push(one.meta.source === other.meta.source && sides.size > 1 ? "outputs" : "texts");
  return { cells, caveats };
}

/** Whether a place of the output follows from the same tokens in both: all that is read, and of what is written all up
 * to the place. */
export function samePlace(one: Pick<Meta, "sides">, other: Pick<Meta, "sides">, place: number): boolean {
  const upTo = (meta: Pick<Meta, "sides">): string[] => meta.sides.decoder?.tokens.slice(0, place + 1) ?? [];
  const [mine, theirs] = [upTo(one), upTo(other)];
  return sameTokens(one, other, "encoder") && mine.length === theirs.length && mine.every((t, i) => t === theirs[i]);
}

function sameTokens(one: Pick<Meta, "sides">, other: Pick<Meta, "sides">, side: "encoder" | "decoder"): boolean {
  const [mine, theirs] = [one.sides[side]?.tokens ?? [], other.sides[side]?.tokens ?? []];
  return mine.length === theirs.length && mine.every((token, place) => token === theirs[place]);
}

export interface Cell {
  query: number;
  key: number;
  before: number;
  after: number;
}

/** The cells that differ most, the largest first; those that do not differ are left out. */
export function largest(before: Matrix, after: Matrix, most: number): Cell[] {
  const found: { at: number; by: number }[] = [];
  for (let at = 0; at < before.data.length; at++) {
    const by = Math.abs(after.data[at] - before.data[at]);
    if (!(by > 0) || (found.length === most && by <= found[most - 1].by)) continue;
    const place = found.findIndex((one) => one.by < by);
    found.splice(place < 0 ? found.length : place, 0, { at, by });
    if (found.length > most) found.pop();
  }
  return found.map(({ at }) => ({
    query: Math.floor(at / before.columns),
    key: at % before.columns,
    before: before.data[at],
    after: after.data[at],
  }));
}

/** Of each head, how much of a query's weight lies elsewhere in the second: 0 the same, 1 all of it; the mean over the
 * queries, from small pictures of √weight with 254 steps. */
export function movedShares(before: Thumbs, after: Thumbs): number[] {
  const size = before.rows * before.columns;
  return Array.from({ length: Math.min(before.heads, after.heads) }, (_, head) => {
    let moved = 0;
    for (let at = head * size; at < (head + 1) * size; at++)
      moved += Math.abs(weightOf(after.data[at]) - weightOf(before.data[at]));
    return moved / 2 / Math.max(1, before.rows);
  });
}

/** 255 is a cell whose keys are all masked. */
function weightOf(step: number): number {
  return step === 255 ? 0 : (step / 254) ** 2;
}
