/** The standard readings of a head, in words: what each number is, how far it can go, and what it means here. */

import type { Readings, SiteMeta } from "../../lib/source";
import { percent, shown } from "../../lib/words";
import { t } from "../../text";

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
    text: t.reading.bits(shown(value, 3)),
    share: value / Math.max(Math.log2(site.n_key), 1e-9),
    meaning: t.reading.spread(shown(2 ** value, 2), site.n_key, spread(value, site)),
  }),
  distance: (value, site) => ({
    text: t.reading.tokens(shown(value, 3)),
    share: value / Math.max(1, site.n_key - 1),
    meaning: site.slot === "cross" ? t.reading.crossDistance : t.reading.looks(value < 1.5),
  }),
  first: (value) => shareOf(value, t.reading.firstMeaning(value > 0.5)),
  itself: (value) => shareOf(value, t.reading.itselfMeaning),
  previous: (value) => shareOf(value, t.reading.previousMeaning(value > 0.5)),
  same: (value) => shareOf(value, t.reading.sameMeaning),
  induction: (value) => shareOf(value, t.reading.inductionMeaning),
  gain: (value) => ({
    text: `× ${shown(value, 2)}`,
    share: value / (1 + value),
    meaning: t.reading.gainMeaning(value >= 1),
  }),
};

function shareOf(value: number, meaning: string): ReturnType<Maker> {
  return { text: percent(value), share: value, meaning };
}

export const READING_NAMES = Object.keys(MAKERS) as ReadingName[];

/** The readings of one head, or their means over the heads. */
export function readingsOf(readings: Readings, site: SiteMeta, head: number | "mean"): Reading[] {
  return READING_NAMES.map((name) => {
    const value = head === "mean" ? mean(readings[name]) : (readings[name][head] ?? null);
    if (value === null) return { name, value, text: t.reading.none, share: 0, meaning: missing(name, site) };
    const made = MAKERS[name](value, site);
    return { name, value, ...made, share: Math.min(1, Math.max(0, made.share)) };
  });
}

function mean(values: (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? null : known.reduce((total, value) => total + value, 0) / known.length;
}

function missing(name: ReadingName, site: SiteMeta): string {
  if (name === "gain") return t.reading.noGain;
  return site.slot === "cross" ? t.reading.differentTexts : t.reading.noRepeat;
}

function spread(entropy: number, site: SiteMeta): string {
  const share = entropy / Math.max(Math.log2(site.n_key), 1e-9);
  if (share < 0.3) return t.reading.knows;
  return share > 0.75 ? t.reading.everywhere : t.reading.few;
}
