/** The chapters of the questions that remain: why Q, K and V differ, how layers work together, how a head was learned;
 * and the way once more, in short. */

import { countText, local } from "../lib/local";
import type { Lens, SiteMeta, Spaces } from "../lib/source";
import { hundredths, percent } from "../lib/words";
import { chosenPlaces, pairOf } from "../views/meaning/pairs";
import {
  answeringSide,
  chapterOf,
  focusOf,
  isSign,
  judge,
  LANES,
  type Lesson,
  type Now,
  selfSites,
  type Task,
  tokensOf,
  unsolved,
  type Verdict,
} from "./lesson";
import { token, tokenAt } from "./markup";
import { openedToken } from "./reading";

/** Tokens that are compared with each other. */
const COMPARED = 8;

const hasSpaces = (lesson: Lesson): boolean => lesson.run.program?.exact !== true && selfSites(lesson).length > 0;

export const roles = chapterOf("roles", hasSpaces, async (lesson, words, link) => {
  const { site, head } = (await focusOf(lesson, selfSites(lesson)))!;
  const list = tokensOf(lesson, site.query_side);
  const all = list.map((_, at) => at);
  const plain = all.filter((at) => !isSign(list[at]));
  const places = (plain.length > 1 ? plain : all).slice(0, COMPARED);
  const spaces = await lesson.source.ask("spaces", { trace: lesson.meta.id, site: site.name, head, places });
  const [far, near] = [mirrored(spaces)[0], mirrored(spaces).at(-1)];
  const own = {
    space: "query_key",
    places: places.join(","),
    pair: near === undefined ? "0,0" : `${near.row},${near.column}`,
  };
  const goal = far === undefined ? 0 : Math.floor(8 * far.apart) / 10;
  return {
    place: { view: link.view, site: site.name, head, own },
    said: words.said(
      near === undefined
        ? null
        : {
            ...{ one: token(spaces.tokens[near.row]), other: token(spaces.tokens[near.column]) },
            ...{ there: hundredths(near.there), back: hundredths(near.back) },
          },
    ),
    task: near === undefined || near.apart >= goal ? null : findOneSided(lesson, site, head, goal),
  };
});

/** Every pair of different places, the least mutual first: the cosine of the row's query with the column's key, the other
 * way round, and how far they are apart. */
function mirrored({ query_key: table }: Pick<Spaces, "query_key">) {
  const found = table.flatMap((cells, row) =>
    cells.slice(0, row).map((there, column) => {
      const back = table[column][row];
      return { row, column, there, back, apart: Math.abs(there - back) };
    }),
  );
  return found.sort((one, other) => other.apart - one.apart);
}

function findOneSided(lesson: Lesson, site: SiteMeta, head: number, goal: number): Task {
  const words = lesson.text.roles;
  const count = tokensOf(lesson, site.query_side).length;
  return {
    ask: words.ask({ apart: local(goal.toFixed(1)) }),
    async check(now) {
      if (now.view !== "meaning" || now.own.pair === undefined || now.site !== site.name || now.head !== head)
        return unsolved(words.hint);
      const places = chosenPlaces(now.own.places ?? null, count);
      const { tokens, query_key: table } = await lesson.source.ask("spaces", {
        trace: now.meta.id,
        site: site.name,
        head,
        places,
      });
      const [row, column] = pairOf(now.own.pair, tokens.length);
      const [there, back] = [table[row][column], table[column][row]];
      const found = {
        ...{ one: token(tokens[row]), other: token(tokens[column]) },
        ...{ there: hundredths(there), back: hundredths(back) },
      };
      return judge(Math.abs(there - back) >= goal, words.right(found), `${words.wrong(found)} ${words.hint}`);
    },
  };
}

const hasDepth = (lesson: Lesson): boolean =>
  lesson.run.sides.at(-1)!.n_layers > 1 &&
  lesson.meta.candidates.length === tokensOf(lesson, answeringSide(lesson.run)).length;

export const layers = chapterOf("layers", hasDepth, async (lesson, words, link) => {
  const side = answeringSide(lesson.run);
  const lens = await lesson.source.ask("lens", { trace: lesson.meta.id });
  const settled = tokensOf(lesson, side)
    .slice(0, LANES)
    .map((_, at) => settledAt(lens, at));
  const told = settled.indexOf(Math.max(...settled));
  const guesses = lens.layers.map(({ rows }) => rows[told]?.[0]).filter((one) => one !== undefined);
  const [first, last] = [guesses[0], guesses[guesses.length - 1]];
  return {
    said: words.said({
      token: tokenAt(tokensOf(lesson, side), told),
      ...{ first: token(first.text), start: percent(first.p), last: token(last.text), end: percent(last.p) },
    }),
    task: new Set(settled).size < 2 ? null : findLatest(lesson, settled),
    spot: link.spot.replace("{side}", side),
  };
});

/** The first place along the stream from which on the guess at a token is the one that is given at the end. */
function settledAt({ layers: all }: Lens, at: number): number {
  const guesses = all.map(({ rows }) => rows[at]?.[0]?.id);
  return guesses.findLastIndex((one) => one !== guesses[guesses.length - 1]) + 1;
}

function findLatest(lesson: Lesson, settled: readonly number[]): Task {
  const words = lesson.text.layers;
  const side = answeringSide(lesson.run);
  return {
    ask: words.ask,
    async check(now) {
      const at = openedToken(now, side);
      if (at === null || settled[at] === undefined) return unsolved(words.hint);
      const named = { token: tokenAt(tokensOf(lesson, side), at) };
      return judge(settled[at] === Math.max(...settled), words.right(named), `${words.wrong(named)} ${words.hint}`);
    },
  };
}

const hasFilm = (lesson: Lesson): boolean =>
  lesson.source.everyStep === true && lesson.run.film.length > 1 && selfSites(lesson).length > 0;

export const film = chapterOf("film", hasFilm, async (lesson, words, link) => {
  const { run, source } = lesson;
  const target = run.target === "writes" ? (lesson.meta.sides.decoder?.ids.slice(1) ?? null) : null;
  const at = (step: number | null) => source.ask("trace", { source: lesson.meta.source, target, edits: [], step });
  // Whatever step is shown, the story is that of the weights at the end.
  const end = await at(null);
  const sites = selfSites(lesson);
  const { site, head, query, key, row, queries, keys } = (await focusOf({ ...lesson, meta: end }, sites))!;
  const first = await source.ask("row", { trace: (await at(run.film[0])).id, site: site.name, head, query });
  const [start, last] = [first.weight[key], row.weight[key]];
  const named = { query: tokenAt(queries, query, "query"), key: tokenAt(keys, key, "key") };
  const goal = Math.ceil((start + last) * 50) / 100;
  return {
    place: { view: link.view, site: site.name, head, query, key, own: {} },
    said: words.said({ ...named, first: percent(start), last: percent(last), step: countText(run.film[0]) }),
    question: {
      ask: words.guess(named),
      choices: words.choices,
      right: [Math.abs(last - start) < 0.05 ? 1 : start < last ? 0 : 2],
      said: words.guessed({ first: percent(start), last: percent(last) }),
    },
    task: last - start < 0.1 ? null : { ask: words.ask({ ...named, most: percent(goal) }), check: findEarlier },
  };

  async function findEarlier(now: Now): Promise<Verdict> {
    const { weight } = await source.ask("row", { trace: now.meta.id, site: site.name, head, query });
    const found = { step: countText(now.meta.step ?? run.step), weight: percent(weight[key]) };
    return judge(weight[key] < goal, words.right(found), `${words.wrong(found)} ${words.hint}`);
  }
});

const hasAttention = (lesson: Lesson): boolean => lesson.meta.sites.length > 0;

export const summary = chapterOf("summary", hasAttention, async (lesson, words, link) => {
  const { run, meta } = lesson;
  const facts = {
    tokens: tokensOf(lesson, run.sides[0].side).length,
    d: run.sides[0].d_model,
    layers: run.sides.reduce((sum, side) => sum + side.n_layers, 0),
    heads: meta.sites.reduce((sum, site) => sum + site.n_heads, 0),
    kind: meta.sites[meta.sites.length - 1].arithmetic.kind,
    cross: meta.sites.some((site) => site.slot === "cross"),
    answer: token(meta.answer),
  };
  return { place: { view: link.view, own: {} }, said: words.said(facts), task: null };
});
