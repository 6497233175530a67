/** The standard readings of a head, in words: what each number is, how far it can go, and what it means here. */

import type { Readings, SiteMeta } from "../../lib/source";
import { percent, shown } from "../../lib/words";

export interface Reading {
  name: string;
  value: number | null;
  /** The number as it is shown, with its unit. */
  text: string;
  /** Between 0 and 1: how long its bar is. */
  share: number;
  meaning: string;
}

export type ReadingName = keyof Readings;

type Maker = (value: number, site: SiteMeta) => Omit<Reading, "name" | "value">;

/** So many queries of a long text are read for the numbers of a head, and no more. */
export const ROWS_READ = 512;

const MAKERS: Record<ReadingName, Maker> = {
  entropy: (value, site) => ({
    text: `${shown(value, 3)} bits`,
    share: value / Math.max(Math.log2(site.n_key), 1e-9),
    meaning: `As if spread evenly over ${shown(2 ** value, 2)} of ${site.n_key} keys: ${spread(value, site)}.`,
  }),
  distance: (value, site) => ({
    text: `${shown(value, 3)} tokens`,
    share: value / Math.max(1, site.n_key - 1),
    meaning:
      site.slot === "cross"
        ? "How far the key's place is from the query's, each counted in its own text."
        : `It looks ${value < 1.5 ? "close by" : "further away"}: the mean distance from query to key.`,
  }),
  first: (value) => ({
    text: percent(value),
    share: value,
    meaning: `The weight on the first token: ${value > 0.5 ? "an attention sink" : "not its resting place"}.`,
  }),
  itself: (value) => ({
    text: percent(value),
    share: value,
    meaning: "The weight of a token on its own place: the diagonal of the map.",
  }),
  previous: (value) => ({
    text: percent(value),
    share: value,
    meaning: `The weight on the token just before: ${value > 0.5 ? "a previous-token head" : "not its main habit"}.`,
  }),
  same: (value) => ({
    text: percent(value),
    share: value,
    meaning: "The weight on the same token, wherever else it stands in the text.",
  }),
  induction: (value) => ({
    text: percent(value),
    share: value,
    meaning: "The weight on what followed the same token there: how repeated text is gone on with.",
  }),
};

export const READING_NAMES = Object.keys(MAKERS) as ReadingName[];

/** The readings of one head, or their means over the heads. */
export function readingsOf(readings: Readings, site: SiteMeta, head: number | "mean"): Reading[] {
  return READING_NAMES.map((name) => {
    const value = head === "mean" ? mean(readings[name]) : (readings[name][head] ?? null);
    if (value === null) return { name, value, text: "none", share: 0, meaning: missing(site) };
    const made = MAKERS[name](value, site);
    return { name, value, ...made, share: Math.min(1, Math.max(0, made.share)) };
  });
}

function mean(values: (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? null : known.reduce((total, value) => total + value, 0) / known.length;
}

function missing(site: SiteMeta): string {
  return site.slot === "cross"
    ? "Query and key are of different texts, so it says nothing here."
    : "No token of this text repeats, so there is nothing to measure.";
}

function spread(entropy: number, site: SiteMeta): string {
  const share = entropy / Math.max(Math.log2(site.n_key), 1e-9);
  if (share < 0.3) return "it knows where to look";
  return share > 0.75 ? "it looks nearly everywhere" : "a few share its attention";
}
