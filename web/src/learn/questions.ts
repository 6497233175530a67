/** The chapters of the questions that remain: why Q, K and V differ, how layers work together, how a head was learned;
 * and the way once more, in short. */

import { countText, local } from "../lib/local";
import type { Lens, SiteMeta, Spaces } from "../lib/source";
import { hundredths, percent } from "../lib/words";
import { chosenPlaces, pairOf } from "../views/meaning/pairs";
import {
  answeringSide,
  type Chapter,
  focusOf,
  isSign,
  LANES,
  type Lesson,
  type Now,
  selfSites,
  type Task,
  tokensOf,
  type Verdict,
} from "./lesson";
import { linkOf } from "./links";
import { token, tokenAt } from "./markup";
import { openedToken } from "./reading";

/** Tokens that are compared with each other. */
const COMPARED = 8;

export const roles: Chapter = {
  name: "roles",
  title: ({ text }) => text.roles.title,
  fits: (lesson) =>
    linkOf("roles", lesson.views) !== null && lesson.run.program?.exact !== true && selfSites(lesson).length > 0,
  async prepare(lesson) {
    const words = lesson.text.roles;
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
    const link = linkOf("roles", lesson.views)!;
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
      spot: link.spot,
    };
  },
};

interface Mirrored {
  row: number;
  column: number;
  /** The cosine of the row's query with the column's key, and the other way round. */
  there: number;
  back: number;
  apart: number;
}

/** Every pair of different places, the least mutual first. */
function mirrored({ query_key: table }: Pick<Spaces, "query_key">): Mirrored[] {
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
        return { solved: false, said: words.hint };
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
      return Math.abs(there - back) >= goal
        ? { solved: true, said: words.right(found) }
        : { solved: false, said: `${words.wrong(found)} ${words.hint}` };
    },
  };
}

export const layers: Chapter = {
  name: "layers",
  title: ({ text }) => text.layers.title,
  fits: (lesson) =>
    linkOf("layers", lesson.views) !== null &&
    lesson.run.sides.at(-1)!.n_layers > 1 &&
    lesson.meta.candidates.length === tokensOf(lesson, answeringSide(lesson.run)).length,
  async prepare(lesson) {
    const words = lesson.text.layers;
    const side = answeringSide(lesson.run);
    const lens = await lesson.source.ask("lens", { trace: lesson.meta.id });
    const settled = tokensOf(lesson, side)
      .slice(0, LANES)
      .map((_, at) => settledAt(lens, at));
    const told = settled.indexOf(Math.max(...settled));
    const link = linkOf("layers", lesson.views)!;
    const guesses = lens.layers.map(({ rows }) => rows[told]?.[0]).filter((one) => one !== undefined);
    const [first, last] = [guesses[0], guesses[guesses.length - 1]];
    return {
      place: { view: link.view, own: {} },
      said: words.said({
        token: tokenAt(tokensOf(lesson, side), told),
        ...{ first: token(first.text), start: percent(first.p), last: token(last.text), end: percent(last.p) },
      }),
      task: new Set(settled).size < 2 ? null : findLatest(lesson, settled),
      spot: link.spot.replace("{side}", side),
    };
  },
};

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
      if (at === null || settled[at] === undefined) return { solved: false, said: words.hint };
      const named = { token: tokenAt(tokensOf(lesson, side), at) };
      return settled[at] === Math.max(...settled)
        ? { solved: true, said: words.right(named) }
        : { solved: false, said: `${words.wrong(named)} ${words.hint}` };
    },
  };
}

export const film: Chapter = {
  name: "film",
  title: ({ text }) => text.film.title,
  fits: (lesson) =>
    linkOf("film", lesson.views) !== null &&
    lesson.source.everyStep === true &&
    lesson.run.film.length > 1 &&
    selfSites(lesson).length > 0,
  async prepare(lesson) {
    const words = lesson.text.film;
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
    const link = linkOf("film", lesson.views)!;
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
      spot: link.spot,
    };

    async function findEarlier(now: Now): Promise<Verdict> {
      const { weight } = await source.ask("row", { trace: now.meta.id, site: site.name, head, query });
      const found = { step: countText(now.meta.step ?? run.step), weight: percent(weight[key]) };
      return weight[key] < goal
        ? { solved: true, said: words.right(found) }
        : { solved: false, said: `${words.wrong(found)} ${words.hint}` };
    }
  },
};

export const summary: Chapter = {
  name: "summary",
  title: ({ text }) => text.summary.title,
  fits: (lesson) => linkOf("summary", lesson.views) !== null && lesson.meta.sites.length > 0,
  async prepare(lesson) {
    const { run, meta } = lesson;
    const link = linkOf("summary", lesson.views)!;
    const facts = {
      tokens: tokensOf(lesson, run.sides[0].side).length,
      d: run.sides[0].d_model,
      layers: run.sides.reduce((sum, side) => sum + side.n_layers, 0),
      heads: meta.sites.reduce((sum, site) => sum + site.n_heads, 0),
      kind: meta.sites[meta.sites.length - 1].arithmetic.kind,
      cross: meta.sites.some((site) => site.slot === "cross"),
      answer: token(meta.answer),
    };
    return { place: { view: link.view, own: {} }, said: lesson.text.summary.said(facts), task: null, spot: link.spot };
  },
};
