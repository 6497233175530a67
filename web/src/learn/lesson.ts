/** What a chapter is given, and what it makes of it. Everything comes through `Source`, so a chapter holds for any run. */

import type { Cursor } from "../lib/address";
import { highest } from "../lib/arithmetic";
import type { HeadChoice, Matrix, Meta, Row, RunFacts, SideName, SiteMeta, Source, ViewName } from "../lib/source";
import type { LearnText } from "../text/learn.en";
import { type ChapterName, type Link, linkOf } from "./links";

/** A text as it was traced, without edits, and everything one needs to speak of it. */
export interface Lesson {
  run: RunFacts;
  meta: Meta;
  source: Source;
  /** The views this page has for the run. */
  views: readonly ViewName[];
  text: LearnText;
}

/** Where a chapter leads: a deep link into a view. */
export interface Place extends Partial<Cursor> {
  view: ViewName;
  own?: Record<string, string>;
  /** The output that is read while edits are tried out: without it the changed model would write another. */
  target?: number[];
}

/** What the reader has chosen by now, and the trace that is shown. */
export interface Now extends Cursor {
  own: Record<string, string>;
  meta: Meta;
}

export interface Verdict {
  solved: boolean;
  said: string;
  /** What was judged, where that is not all that is chosen; null: nothing yet. */
  of?: string | null;
}

export interface Task {
  ask: string;
  /** Tell whether what is chosen solves it, and why, or what to try. */
  check(now: Now): Promise<Verdict>;
}

/** Asked before anything is changed; the right choices are what the model does. */
export interface Question {
  ask: string;
  choices: string[];
  right: number[];
  /** What is true, once one has chosen. */
  said: string;
}

export interface Prepared {
  place: Place;
  said: string[];
  task: Task | null;
  question?: Question | null;
  /** Code that is shown below the text. */
  code?: string | null;
  /** Whether what is chosen here is an answer, which is there again when one comes back. */
  keeps?: boolean;
  /** A CSS selector of what the chapter speaks of. */
  spot: string;
}

export interface Chapter {
  /** A `ChapterName`, or that of a step which a teacher wrote. */
  name: string;
  /** The text it is told with; without it, whichever is there. */
  sentence?: string | null;
  title(lesson: Lesson): string;
  /** Whether the run has what the chapter is about. */
  fits(lesson: Lesson): boolean;
  prepare(lesson: Lesson): Promise<Prepared>;
}

/** What a chapter makes: without a place it opens its view, without a spot it speaks of what its link points at. */
type Made = Omit<Prepared, "place" | "spot"> & { place?: Place; spot?: string };

/** Return a chapter that is told in the first of its views that the page has, of a run that fits. */
export function chapterOf<Name extends Exclude<ChapterName, "softmax">>(
  name: Name,
  fits: (lesson: Lesson) => boolean,
  prepare: (lesson: Lesson, words: LearnText[Name], link: Link) => Promise<Made>,
): Chapter {
  return {
    name,
    title: ({ text }) => text[name].title,
    fits: (lesson) => linkOf(name, lesson.views) !== null && fits(lesson),
    async prepare(lesson) {
      const link = linkOf(name, lesson.views)!;
      return {
        place: { view: link.view, own: {} },
        spot: link.spot,
        ...(await prepare(lesson, lesson.text[name], link)),
      };
    },
  };
}

/** Return a verdict and its reason. */
export function judge(solved: boolean, right: string, wrong: string): Verdict {
  return { solved, said: solved ? right : wrong };
}

export function unsolved(said: string): Verdict {
  return { solved: false, said };
}

/** A query of a head that shows something: it looks at another token than itself. */
export interface Focus {
  site: SiteMeta;
  head: number;
  query: number;
  /** Its strongest key. */
  key: number;
  row: Row;
  queries: readonly string[];
  keys: readonly string[];
}

/** Heads of a site that are looked through for one that shows something. */
const HEADS = 8;
/** Tokens that the model's picture has lanes for. */
export const LANES = 24;

export function tokensOf(lesson: Lesson, side: SideName): readonly string[] {
  return lesson.meta.sides[side]?.tokens ?? [];
}

/** The side that answers: the decoder where there is one. */
export function answeringSide(run: RunFacts): SideName {
  return run.sides[run.sides.length - 1].side;
}

/** Self-attentions of the answering side whose every step is there, or at least their weights. */
export function selfSites(lesson: Lesson): SiteMeta[] {
  const side = answeringSide(lesson.run);
  return lesson.meta.sites.filter((site) => site.slot === "attention" && site.side === side);
}

export function crossSites(lesson: Lesson): SiteMeta[] {
  return lesson.meta.sites.filter((site) => site.slot === "cross");
}

/** Whether a number is as large as the largest, but for rounding. */
export function reaches(value: number, most: number): boolean {
  return value >= most - 1e-6 * Math.max(1, Math.abs(most));
}

/** The weights of a head: of a long text those of the first tokens, which is what one tile holds. */
export function weightsOf(lesson: Lesson, site: SiteMeta, head: HeadChoice): Promise<Matrix> {
  const tile = { site: site.name, head, step: "weight", level: 0, row: 0, column: 0 } as const;
  return lesson.source.ask("tile", { trace: lesson.meta.id, ...tile });
}

const known = new WeakMap<Lesson, { effect: Effect; sites: string; found: Promise<Focus | null> }[]>();

/** How well a row of a head's weights shows what a chapter is about; `tops` are the strongest keys of all rows. */
export type Effect = (weights: Float32Array, query: number, tops: readonly number[]) => number;

/** Any row shows it. */
const anything: Effect = () => 1;

/** The query to tell the story with: of the last or the first of some sites, the one with the most telling weight, and of
 * those the one that shows an effect best. */
export function focusOf(lesson: Lesson, sites: SiteMeta[], effect: Effect = anything): Promise<Focus | null> {
  const names = sites.map((site) => site.name).join();
  const all = known.get(lesson) ?? [];
  known.set(lesson, all);
  const made = all.find((one) => one.effect === effect && one.sites === names);
  if (made !== undefined) return made.found;
  const found = findFocus(lesson, sites, effect);
  all.push({ effect, sites: names, found });
  return found;
}

async function findFocus(lesson: Lesson, sites: SiteMeta[], effect: Effect): Promise<Focus | null> {
  let best: { site: SiteMeta; head: number; query: number; key: number; telling: number } | null = null;
  for (const { site, heads } of candidates(lesson, sites))
    for (const head of heads) {
      const { rows, columns, data } = await weightsOf(lesson, site, head);
      const [queries, keys] = [tokensOf(lesson, site.query_side), tokensOf(lesson, site.key_side)];
      const weightsAt = (query: number): Float32Array => data.subarray(query * columns, (query + 1) * columns);
      const tops = Array.from({ length: rows }, (_, query) => highest(weightsAt(query)));
      for (const [query, key] of tops.entries()) {
        const weights = weightsAt(query);
        // A row of cross-attention is about what is written there.
        const about = (site.slot === "cross" ? lesson.meta.candidates[query]?.[0]?.text : null) ?? queries[query];
        const self = site.slot === "attention" && key === query;
        const worth =
          effect(weights, query, tops) *
          weights[key] *
          (self ? 0.4 : 1) *
          (isSign(keys[key]) ? 0.5 : 1) *
          (isSign(about) ? 0.6 : 1) *
          (isWord(about) ? 1 : 0.7) *
          (isWord(keys[key]) ? 1 : 0.8) *
          (site.arithmetic.causal && query < 2 ? 0.5 : 1) *
          (weights[key] > 0.98 ? 0.9 : 1);
        if (best === null || worth > best.telling) best = { site, head, query, key, telling: worth };
      }
    }
  if (best === null) return null;
  const { site, head, query, key } = best;
  return {
    ...{ site, head, query, key },
    row: await lesson.source.ask("row", { trace: lesson.meta.id, site: site.name, head, query }),
    queries: tokensOf(lesson, site.query_side),
    keys: tokensOf(lesson, site.key_side),
  };
}

/** The last site and the first, with their first heads; of a compiled program the heads that have a job. */
function candidates(lesson: Lesson, sites: SiteMeta[]): { site: SiteMeta; heads: number[] }[] {
  const jobs = lesson.run.program?.layers.flatMap((layer) => layer.heads) ?? [];
  const working = sites.filter((site) => jobs.some((job) => job.site === site.name));
  const few = (working.length > 0 ? working : sites).slice();
  const chosen = [...new Set([few.at(-1), few[0]])].filter((site) => site !== undefined);
  return chosen.map((site) => {
    const own = jobs.filter((job) => job.site === site.name).map((job) => job.head);
    const all = Array.from({ length: Math.min(HEADS, site.n_heads) }, (_, head) => head);
    return { site, heads: own.length > 0 ? own : all };
  });
}

/** Whether a token is a sign of the model's own, such as "<s>", and no text. */
export function isSign(token: string | undefined): boolean {
  return token === undefined || /^<[^<>]+>$/.test(token);
}

function isWord(token: string): boolean {
  return /[\p{L}\p{N}]/u.test(token);
}

/** Which keys the query of a row may look at. */
export function allowedOf(row: Row): boolean[] {
  return row.allowed ?? row.weight.map(() => true);
}
