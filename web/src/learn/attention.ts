/** The chapters of attention: query, key and value, score, scale, mask, softmax, weighted sum, heads, cross-attention. */

import { countText } from "../lib/local";
import { length, softmax as softmaxOf, highest, lowest } from "../lib/arithmetic";
import type { HeadChoice, SiteMeta } from "../lib/source";
import { percent, shown } from "../lib/words";
import { worked } from "../views/steps/working";
import {
  allowedOf,
  type Chapter,
  chapterOf,
  crossSites,
  type Focus,
  focusOf,
  isSign,
  judge,
  type Lesson,
  type Now,
  type Place,
  type Question,
  reaches,
  selfSites,
  type Task,
  unsolved,
  weightsOf,
} from "./lesson";
import { type ChapterName, linkOf } from "./links";
import { token, tokenAt } from "./markup";

const HEADS_COMPARED = 16;

/** The time within the four steps at which the part of a chapter is on the page. */
const AT: Partial<Record<ChapterName, string>> = { vectors: "1", score: "2", scale: "2.35", softmax: "3", sum: "4" };

/** Whether a token is chosen that there is: an address can say anything. */
function within(at: number | null, tokens: readonly string[]): at is number {
  return at !== null && at < tokens.length;
}

/** Whether the numbers shown are of the head that the chapter speaks of. */
function onHead(now: Now, { site, head }: { site: SiteMeta; head: HeadChoice }): boolean {
  return now.site === site.name && now.head === head;
}

function story(lesson: Lesson): SiteMeta[] {
  const own = selfSites(lesson);
  return own.length > 0 ? own : crossSites(lesson);
}

async function mainFocus(lesson: Lesson): Promise<Focus> {
  return (await focusOf(lesson, story(lesson)))!;
}

function stepsPlace(name: ChapterName, { site, head, query }: Focus, key: number): Place {
  return { view: "steps", site: site.name, head, query, key, own: { at: AT[name] ?? "1" } };
}

function hasStory(lesson: Lesson): boolean {
  return (story(lesson)[0]?.n_query ?? 0) > 0;
}

export const vectors = chapterOf("vectors", hasStory, async (lesson, words) => {
  const focus = await mainFocus(lesson);
  const { site, query, key, queries, keys } = focus;
  const side = lesson.run.sides.find((one) => one.side === site.query_side)!;
  const facts = {
    query: tokenAt(queries, query, "query"),
    d: side.d_model,
    dHead: site.d_head,
    shared: site.n_kv_heads < site.n_heads,
    learned: lesson.run.program?.exact !== true,
  };
  const swapped = site.slot === "attention" && key !== query;
  return {
    place: stepsPlace("vectors", focus, key),
    said: words.said(facts),
    task: swapped ? swapRoles(focus) : null,
  };
  function swapRoles({ query: asked, key: asking }: Focus): Task {
    const named = { query: tokenAt(queries, asking, "query"), key: tokenAt(keys, asked, "key") };
    return {
      ask: words.ask(named),
      async check(now) {
        if (now.query !== asking) return unsolved(words.hintQuery(named));
        if (now.key !== asked) return unsolved(words.hintKey(named));
        return { solved: true, said: words.right(named) };
      },
    };
  }
});

export const score = chapterOf("score", hasStory, async (lesson, words) => {
  const focus = await mainFocus(lesson);
  const { site, row, query, queries, keys } = focus;
  const [allowed, scores] = [allowedOf(row), finite(row.score ?? [])];
  const seen = scores.map((one, key) => (allowed[key] ? one : Infinity));
  const start = Math.max(0, lowest(seen));
  const facts = {
    query: tokenAt(queries, query, "query"),
    key: tokenAt(keys, start, "key"),
    best: tokenAt(keys, focus.key, "key"),
    score: shown(scores[start], 3),
    d: site.d_head,
    formula: site.arithmetic.formula,
    dot: isDot(site),
  };
  const puzzle = allowed.filter(Boolean).length > 1 && !reaches(scores[start], bestOf(scores, allowed));
  return {
    place: stepsPlace("score", focus, start),
    said: words.said(facts),
    task: puzzle ? findBest(lesson, focus) : null,
  };
});

function findBest(lesson: Lesson, focus: Focus): Task {
  const words = lesson.text.score;
  const { site, head, query, queries, keys } = focus;
  const asked = tokenAt(queries, query, "query");
  return {
    ask: words.ask({ query: asked, masks: site.arithmetic.masks }),
    async check(now) {
      if (!onHead(now, focus) || now.query !== query || !within(now.key, keys)) return unsolved(words.hint);
      const row = await lesson.source.ask("row", { trace: now.meta.id, site: site.name, head, query });
      const [allowed, scores] = [allowedOf(row), finite(row.score ?? [])];
      const found = { query: asked, key: tokenAt(keys, now.key, "key"), score: shown(scores[now.key], 3) };
      if (!allowed[now.key]) return unsolved(words.blocked(found));
      return judge(reaches(scores[now.key], bestOf(scores, allowed)), words.right(found), words.wrong(found));
    },
  };
}

function bestOf(scores: number[], allowed: boolean[]): number {
  return Math.max(...scores.filter((_, key) => allowed[key]));
}

function isDot(site: SiteMeta): boolean {
  return /^(scaled)?dot$/i.test(site.similarity);
}

/** Whether a head scales its scores by another factor than 1. */
function scales(site: SiteMeta, head: number): boolean {
  return Math.abs((site.scale[head] ?? site.scale[0] ?? 1) - 1) > 1e-9;
}

const scalesScores = (lesson: Lesson): boolean => hasStory(lesson) && story(lesson).some((site) => scales(site, 0));

export const scale = chapterOf("scale", scalesScores, async (lesson, words, link) => {
  const focus = await mainFocus(lesson);
  const { site, head, row, query, key, queries } = focus;
  const factor = site.scale[head] ?? site.scale[0];
  const root = Math.sqrt(site.d_head);
  const plain = Math.abs(factor * root - 1) < 1e-6;
  const now = Math.max(...row.weight);
  const unscaled = site.arithmetic.kind === "softmax" ? mostAt(focus, factor) : null;
  const facts = {
    query: tokenAt(queries, query, "query"),
    score: worked([row.score?.[key]], (one) => one * factor, shown, 3)[0],
    scaled: shown(row.scaled?.[key], 3),
    d: site.d_head,
    root: plain ? shown(root, 3) : null,
    scale: shown(factor, 3),
    reason: site.arithmetic.scale_reason,
    now: percent(now),
    without: plain && unscaled !== null && unscaled > now + 0.02 ? percent(unscaled) : null,
  };
  const several = allowedOf(row).filter(Boolean).length > 1;
  const turned = unscaled === null ? null : turnTemperature(lesson, focus, now);
  if (link.view === "intervene" && turned !== null && several) {
    const target = lesson.meta.sides.decoder?.ids.slice(1);
    return {
      place: {
        ...{ view: link.view, site: site.name, head, query, key, own: {} },
        ...(lesson.run.target === "writes" && target ? { target } : {}),
      },
      said: words.said(facts),
      task: turned,
      question: guessSharper(lesson, focus, now),
    };
  }
  const seen = allowedOf(row);
  const start = highest(finite(row.scaled ?? []).map((one, at) => (seen[at] ? one : -Infinity)));
  return {
    place: stepsPlace("scale", focus, start),
    said: words.said(facts),
    task: several ? findLowest(lesson, focus, start) : null,
    spot: linkOf("scale", ["steps"])!.spot,
  };
});

/** The largest weight of the row if its scaled scores are divided by a temperature: positions and mask stay. */
function mostAt({ row }: Focus, temperature: number): number {
  const divided = (row.masked ?? []).map((one, key) => {
    const scaled = row.scaled?.[key] ?? 0;
    return one === null || !allowedOf(row)[key] ? -Infinity : one - scaled + scaled / temperature;
  });
  return Math.max(...softmaxOf(divided).weight);
}

/** What a lower temperature does to the largest weight, before it is moved. */
function guessSharper(lesson: Lesson, focus: Focus, now: number): Question {
  const words = lesson.text.scale;
  const then = mostAt(focus, 0.5);
  const same = Math.abs(then - now) < 0.005;
  return {
    ask: words.guess({ query: tokenAt(focus.queries, focus.query, "query"), now: percent(now) }),
    choices: words.choices,
    right: [same ? 1 : then > now ? 0 : 2],
    said: words.guessed({ now: percent(now), then: percent(then) }),
  };
}

/** Temperatures that the slider has: the first that changes enough makes the task. */
const TEMPERATURES = [0.35, 0.2, 2, 4, 8];

function turnTemperature(lesson: Lesson, focus: Focus, now: number): Task | null {
  const words = lesson.text.scale;
  const { site, head, query, queries } = focus;
  // Where the weights are all on one key already, the way to see the scale is the other one.
  const turned = TEMPERATURES.find((one) => Math.abs(mostAt(focus, one) - now) > 0.05);
  if (turned === undefined) return null;
  const sharper = turned < 1;
  const goal = round(mostAt(focus, turned), sharper);
  const asked = { query: tokenAt(queries, query, "query"), most: percent(goal) };
  return {
    ask: sharper ? words.askSharp(asked) : words.askEven(asked),
    async check(seen) {
      if (seen.meta.edits.length === 0) return unsolved(words.hint);
      const row = await lesson.source.ask("row", { trace: seen.meta.id, site: site.name, head, query });
      const weight = Math.max(...row.weight);
      const found = { weight: percent(weight) };
      const solved = sharper ? weight >= goal - 1e-9 : weight <= goal + 1e-9;
      return { solved, said: solved ? words.right(found) : words.wrong(found) };
    },
  };
}

/** A whole number of percent, on the easier side. */
function round(share: number, below: boolean): number {
  return (below ? Math.floor(share * 100) : Math.ceil(share * 100)) / 100;
}

function findLowest(lesson: Lesson, focus: Focus, start: number): Task | null {
  const words = lesson.text.scale;
  const { site, head, query, queries, keys } = focus;
  const asked = { query: tokenAt(queries, query, "query") };
  const value = (row: Focus["row"], key: number): number => (allowedOf(row)[key] ? (row.scaled?.[key] ?? 0) : Infinity);
  const least = (row: Focus["row"]): number => Math.min(...row.weight.map((_, key) => value(row, key)));
  if (reaches(-value(focus.row, start), -least(focus.row))) return null;
  return {
    ask: words.ask(asked),
    async check(now) {
      if (!onHead(now, focus) || now.query !== query || !within(now.key, keys)) return unsolved(words.hintKey);
      const row = await lesson.source.ask("row", { trace: now.meta.id, site: site.name, head, query });
      const found = { key: tokenAt(keys, now.key, "key"), scaled: shown(row.scaled?.[now.key], 3) };
      return judge(
        reaches(-value(row, now.key), -least(row)),
        words.rightKey(found),
        `${words.wrongKey(found)} ${words.hintKey}`,
      );
    },
  };
}

const hidesKeys = (lesson: Lesson): boolean => story(lesson).some((site) => site.arithmetic.masks);

export const mask = chapterOf("mask", hidesKeys, async (lesson, words) => {
  const site = story(lesson).findLast((one) => one.arithmetic.masks)!;
  const focus = (await focusOf(lesson, [site]))!;
  const tile = { site: site.name, head: focus.head, step: "allowed", level: 0, row: 0, column: 0 } as const;
  const { rows, columns, data } = await lesson.source.ask("tile", { trace: lesson.meta.id, ...tile });
  const counts = Array.from({ length: rows }, (_, query) =>
    data.subarray(query * columns, (query + 1) * columns).reduce((sum, one) => sum + (one > 0 ? 1 : 0), 0),
  );
  const start = rows - 1;
  const facts = {
    causal: site.arithmetic.causal,
    writes: lesson.run.target === "writes",
    hidden: countText(rows * columns - counts.reduce((sum, one) => sum + one, 0)),
    total: rows * columns,
    first: token(focus.queries[0], "query"),
    blocked: shown(site.arithmetic.blocked),
  };
  // The count that the fewest queries have is the best puzzle; that of the query it opens on is none.
  const others = counts.filter((count) => count !== counts[start] && count > 0);
  const wanted = others.toSorted((one, other) => often(counts, one) - often(counts, other) || other - one);
  const middle = wanted[Math.floor(wanted.length / 2)];
  return {
    place: { view: "head", site: site.name, head: focus.head, query: start, key: null, own: {} },
    said: words.said(facts),
    task: middle === undefined ? null : countKeys(lesson, focus, counts, middle),
  };
});

function often(counts: number[], count: number): number {
  return counts.filter((one) => one === count).length;
}

function countKeys(lesson: Lesson, { site, queries }: Focus, counts: number[], wanted: number): Task {
  const words = lesson.text.mask;
  return {
    ask: words.ask({ count: wanted }),
    async check(now) {
      if (now.site !== site.name || !within(now.query, queries) || counts[now.query] === undefined)
        return unsolved(words.hint);
      const found = { query: tokenAt(queries, now.query, "query"), count: counts[now.query] };
      return judge(counts[now.query] === wanted, words.right(found), `${words.wrong(found)} ${words.hint}`);
    },
  };
}

export const softmax: Chapter = {
  name: "softmax",
  title: (lesson) => lesson.text.softmax.titles[(story(lesson).at(-1) ?? lesson.meta.sites[0]).arithmetic.kind],
  fits: (lesson) => linkOf("softmax", lesson.views) !== null && hasStory(lesson),
  async prepare(lesson) {
    const words = lesson.text.softmax;
    const focus = (await focusOf(lesson, story(lesson), smallLead))!;
    const { site, head, query, key, queries, keys } = focus;
    const cell = await lesson.source.ask("cell", { trace: lesson.meta.id, site: site.name, head, query, key });
    const second = secondKey(focus);
    const runnerUp = async (
      at: number,
    ): Promise<{ key: string; power: string; exponential: string; weight: string; close: boolean }> => {
      const { masked, exponential, weight } = await lesson.source.ask("cell", {
        trace: lesson.meta.id,
        site: site.name,
        head,
        query,
        key: at,
      });
      const [own, most] = worked([masked, cell.masked], (one, other) => Math.exp(one - other), shown, 3);
      return {
        close: weight * 3 > cell.weight,
        key: tokenAt(keys, at, "key"),
        power: `${own} − ${most.startsWith("−") ? `(${most})` : most}`,
        exponential: shown(exponential ?? 0, 3),
        weight: percent(weight),
      };
    };
    const facts = {
      kind: site.arithmetic.kind,
      rule: site.arithmetic.rule,
      query: tokenAt(queries, query, "query"),
      key: tokenAt(keys, key, "key"),
      masked: shown(cell.masked, 3),
      exponential: shown(cell.exponential ?? 0, 3),
      total: shown(cell.total ?? 0, 3),
      weight: percent(cell.weight),
      ties: cell.ties.length,
      second: second === null ? null : await runnerUp(second),
    };
    const tops = await topKeys(lesson, focus);
    const wanted = rarest(tops, tops[query].key);
    return {
      place: stepsPlace("softmax", focus, key),
      said: words.said(facts),
      task: wanted === null ? null : findQuery(lesson, focus, wanted),
      spot: linkOf("softmax", lesson.views)!.spot,
    };
  },
};

/** A lead of one or two over the second score: small, and a weight of three to seven times as much. */
export function smallLead(weights: Float32Array, query: number, tops: readonly number[]): number {
  const best = weights[tops[query]];
  const second = weights.reduce((most, one, at) => (at !== tops[query] && one > most ? one : most), 0);
  const lead = Math.log(best / second);
  return lead >= 1 && lead <= 2 ? 1 : lead > 0.5 && lead < 3 ? 0.15 : 0.1;
}

/** The key that comes second, where there is one. */
function secondKey({ row, key }: Focus): number | null {
  const allowed = allowedOf(row);
  const others = row.weight.map((weight, at) => (at === key || !allowed[at] ? -1 : weight));
  const found = highest(others);
  return others[found] < 0 ? null : found;
}

/** The strongest key of every query, and its weight. */
async function topKeys(lesson: Lesson, { site, head }: Focus): Promise<{ key: number; weight: number }[]> {
  const { rows, columns, data } = await weightsOf(lesson, site, head);
  return Array.from({ length: rows }, (_, query) => {
    const weights = data.subarray(query * columns, (query + 1) * columns);
    const key = highest(weights);
    return { key, weight: weights[key] };
  });
}

/** What a task asks for stands out: its weight is more than this, where any is. */
const CLEAR = 0.4;

/** A key that is some query's strongest, clearly and of as few as possible, and not the one that is shown already. */
function rarest(tops: { key: number; weight: number }[], not: number): number | null {
  const keys = tops.map(({ key }) => key);
  const others = tops.filter(({ key }) => key !== not);
  const clear = others.filter(({ weight }) => weight > CLEAR);
  const asked = clear.length > 0 ? clear : others;
  return asked[lowest(asked.map(({ key }) => often(keys, key)))]?.key ?? null;
}

function findQuery(lesson: Lesson, focus: Focus, wanted: number): Task {
  const words = lesson.text.softmax;
  const { site, head, queries, keys } = focus;
  return {
    ask: words.ask({ key: tokenAt(keys, wanted, "key") }),
    async check(now) {
      if (!onHead(now, focus) || !within(now.query, queries)) return unsolved(words.hint);
      const { weight } = await lesson.source.ask("row", {
        trace: now.meta.id,
        site: site.name,
        head,
        query: now.query,
      });
      const best = highest(weight);
      const named = (key: number): { query: string; key: string; weight: string } => ({
        query: tokenAt(queries, now.query ?? 0, "query"),
        key: tokenAt(keys, key, "key"),
        weight: percent(weight[key]),
      });
      if (reaches(weight[wanted], weight[best])) return { solved: true, said: words.right(named(wanted)) };
      return unsolved(words.wrong(named(best)));
    },
  };
}

export const sum = chapterOf("sum", hasStory, async (lesson, words) => {
  const focus = await mainFocus(lesson);
  const { site, row, query, key, queries, keys } = focus;
  const given = await givenBy(lesson, lesson.meta.id, focus);
  const rest = row.weight.reduce((total, one) => total + one, 0) - row.weight[key];
  const facts = {
    query: tokenAt(queries, query, "query"),
    key: tokenAt(keys, key, "key"),
    weight: percent(row.weight[key]),
    d: site.d_value,
    rest: rest > 0.0005 ? percent(rest) : null,
  };
  const allowed = allowedOf(row);
  const start = lowest(given.map((one, at) => (allowed[at] ? one.amount : Infinity)));
  const most = Math.max(...given.map((one) => one.amount));
  return {
    place: stepsPlace("sum", focus, start),
    said: words.said(facts),
    task: reaches(given[start].amount, most) ? null : findGiver(lesson, focus),
  };
});

/** How long the share of each key is in what a query takes. */
async function givenBy(lesson: Lesson, id: string, { site, head, query }: Focus) {
  const [row, values] = await Promise.all([
    lesson.source.ask("row", { trace: id, site: site.name, head, query }),
    lesson.source.ask("vectors", { trace: id, site: site.name, head, role: "value" }),
  ]);
  return row.weight.map((weight, key) => {
    const size = length(values.data.subarray(key * values.columns, (key + 1) * values.columns));
    return { weight, length: size, amount: Math.abs(weight) * size };
  });
}

function findGiver(lesson: Lesson, focus: Focus): Task {
  const words = lesson.text.sum;
  const { query, queries, keys } = focus;
  return {
    ask: words.ask({ query: tokenAt(queries, query, "query") }),
    async check(now) {
      if (!onHead(now, focus) || now.query !== query || !within(now.key, keys)) return unsolved(words.hint);
      const given = await givenBy(lesson, now.meta.id, focus);
      const { weight, length: size, amount } = given[now.key];
      const found = {
        key: tokenAt(keys, now.key, "key"),
        weight: percent(weight),
        length: shown(size, 3),
        given: shown(amount, 3),
      };
      return judge(
        reaches(amount, Math.max(...given.map((one) => one.amount))),
        words.right(found),
        words.wrong(found),
      );
    },
  };
}

const hasRivals = (lesson: Lesson): boolean => rivals(lesson, story(lesson).at(-1)).length > 1;

export const heads = chapterOf("heads", hasRivals, async (lesson, words, link) => {
  const focus = await mainFocus(lesson);
  const all = rivals(lesson, focus.site);
  const byLayer = all[0].site.n_heads === 1;
  const rows = await Promise.all(
    all.map(({ site, head }) =>
      lesson.source.ask("row", { trace: lesson.meta.id, site: site.name, head, query: focus.query }),
    ),
  );
  const weights = rows.map((row) => row.weight[focus.key]);
  const start = lowest(weights);
  const { site, head } = all[start];
  const job = lesson.run.program?.layers
    .flatMap((layer) => layer.heads)
    .find((one) => one.site === site.name && one.head === head)?.words;
  const facts = {
    heads: site.n_heads,
    layers: new Set(lesson.meta.sites.map((one) => one.layer)).size,
    total: lesson.meta.sites.reduce((total, one) => total + one.n_heads, 0),
    query: tokenAt(focus.queries, focus.query, "query"),
    key: tokenAt(focus.keys, focus.key, "key"),
    job: lesson.run.program?.exact === true ? (job ?? null) : null,
  };
  const puzzle = !reaches(weights[start], Math.max(...weights));
  return {
    place: { view: "head", site: site.name, head, query: focus.query, key: focus.key, own: {} },
    said: words.said(facts),
    task: puzzle ? findHead(lesson, focus, all, byLayer) : null,
    spot: byLayer ? `[data-testid="place"]` : link.spot,
  };
});

/** The heads of the story's layer, in one of which it is told; where that has one, the layers. */
function rivals(lesson: Lesson, site: SiteMeta | undefined): { site: SiteMeta; head: number }[] {
  if (site === undefined || site.n_heads < 2)
    return story(lesson)
      .slice(0, HEADS_COMPARED)
      .map((one) => ({ site: one, head: 0 }));
  return Array.from({ length: Math.min(HEADS_COMPARED, site.n_heads) }, (_, head) => ({ site, head }));
}

function findHead(
  lesson: Lesson,
  { query, key, queries, keys }: Focus,
  all: { site: SiteMeta; head: number }[],
  byLayer: boolean,
): Task {
  const words = lesson.text.heads;
  const named = { query: tokenAt(queries, query, "query"), key: tokenAt(keys, key, "key") };
  return {
    ask: byLayer ? words.askLayer(named) : words.ask(named),
    async check(now) {
      const chosen = all.find((one) => one.site.name === now.site && one.head === now.head);
      if (now.head === "mean") return unsolved(words.hint);
      if (chosen === undefined) return unsolved(words.elsewhere);
      const rows = await Promise.all(
        all.map(({ site, head }) => lesson.source.ask("row", { trace: now.meta.id, site: site.name, head, query })),
      );
      const weights = rows.map((row) => row.weight[key]);
      const weight = weights[all.indexOf(chosen)];
      const name = byLayer ? words.layerName({ layer: chosen.site.layer }) : words.headName({ head: chosen.head });
      const found = { name, weight: percent(weight) };
      return judge(reaches(weight, Math.max(...weights)), words.right(found), `${words.wrong(found)} ${words.hint}`);
    },
  };
}

const readsAcross = (lesson: Lesson): boolean => crossSites(lesson).length > 0;

export const cross = chapterOf("cross", readsAcross, async (lesson, words) => {
  const focus = (await focusOf(lesson, crossSites(lesson), swapped))!;
  const { site, head, query, key, row, queries, keys } = focus;
  const facts = {
    query: tokenAt(queries, query, "query"),
    key: tokenAt(keys, key, "key"),
    weight: percent(row.weight[key]),
    writes: token(lesson.meta.candidates[query]?.[0]?.text ?? ""),
  };
  const wanted = await lookedAtByAnother(lesson, focus);
  return {
    place: { view: "head", site: site.name, head, query, key, own: {} },
    said: words.said(facts),
    task: wanted === null ? null : findLooker(lesson, focus, wanted),
  };
});

/** A row in which the two texts have another order: it looks further back than a row before it. */
export function swapped(_: Float32Array, query: number, tops: readonly number[]): number {
  return tops.slice(0, query).some((earlier) => tops[query] < earlier) ? 1 : 0.4;
}

/** The source token that some other query looks at most, a word rather than a sign, with the largest weight of all. */
async function lookedAtByAnother(lesson: Lesson, { site, head, query, keys }: Focus): Promise<number | null> {
  const { rows, columns, data } = await weightsOf(lesson, site, head);
  const most = Array.from({ length: columns }, (_, key) => {
    const column = Array.from({ length: rows }, (_, at) => data[at * columns + key]);
    return reaches(column[query], Math.max(...column)) ? -1 : Math.max(...column) * (isSign(keys[key]) ? 0.3 : 1);
  });
  const found = highest(most);
  return most[found] < 0 ? null : found;
}

function findLooker(lesson: Lesson, focus: Focus, wanted: number): Task {
  const words = lesson.text.cross;
  const { site, head, queries, keys } = focus;
  return {
    ask: words.ask({ key: tokenAt(keys, wanted, "key") }),
    async check(now) {
      if (!onHead(now, focus) || !within(now.query, queries)) return unsolved(words.hint);
      const { weight } = await lesson.source.ask("column", { trace: now.meta.id, site: site.name, head, key: wanted });
      const mine = weight[now.query];
      const found = {
        query: tokenAt(queries, now.query, "query"),
        key: tokenAt(keys, wanted, "key"),
        weight: percent(mine),
      };
      return judge(reaches(mine, Math.max(...weight)), words.right(found), words.wrong(found));
    },
  };
}

function finite(values: readonly (number | null)[]): number[] {
  return values.map((one) => one ?? -Infinity);
}
