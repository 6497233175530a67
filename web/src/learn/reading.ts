/** The chapters before attention: tokens, embedding, position. */

import { highest } from "../lib/arithmetic";
import { countText } from "../lib/local";
import { chosenPlaces, pairOf } from "../views/meaning/pairs";
import { hundredths } from "../lib/words";
import type { SideName, SiteMeta, Spaces } from "../lib/source";
import {
  chapterOf,
  isSign,
  judge,
  LANES,
  type Lesson,
  type Now,
  type Prepared,
  reaches,
  type Task,
  tokensOf,
  unsolved,
  type Verdict,
} from "./lesson";
import { type Link, linkOf } from "./links";
import { token, tokenAt } from "./markup";

const LISTED = 8;
const COMPARED = 8;
/** Positions that the view of them shows. */
const POSITIONS = 64;

function readingSide(lesson: Lesson): SideName {
  return lesson.run.sides[0].side;
}

/** The token that is opened in the model's picture, if one of this side is. */
export function openedToken(now: Now, side: SideName): number | null {
  const [what, of, at] = (now.own.box ?? "").split(".");
  return now.view === "model" && what === "token" && of === side ? Number(at) : null;
}

const always = (): boolean => true;

export const tokens = chapterOf("tokens", always, async (lesson, words, link) => {
  const side = readingSide(lesson);
  const list = tokensOf(lesson, side);
  const ids = lesson.meta.sides[side]?.ids ?? [];
  const listed = list.slice(0, LISTED).map((one) => token(one));
  const facts = {
    list: listed.join(", ") + (list.length > LISTED ? ", …" : ""),
    count: list.length,
    vocabulary: countText(lesson.run.vocabulary),
    starts: isSign(list[0]) && list.length > 1 ? token(list[0]) : null,
  };
  return {
    said: words.said(facts),
    task: list.length < 2 ? null : findId(lesson, side, ids, list),
    spot: link.spot.replace("{side}", side),
  };
});

function findId(lesson: Lesson, side: SideName, ids: readonly number[], list: readonly string[]): Task {
  const words = lesson.text.tokens;
  const id = ids[highest(ids.slice(0, LANES))];
  return {
    ask: words.ask({ id }),
    async check(now) {
      const at = openedToken(now, side);
      if (at === null || ids[at] === undefined) return unsolved(words.hint);
      const found = { token: tokenAt(list, at), id: ids[at] };
      return judge(ids[at] === id, words.right(found), words.wrong(found));
    },
  };
}

export const embedding = chapterOf("embedding", always, async (lesson, _, link) => {
  const site = lesson.meta.sites.find((one) => one.slot === "attention" && one.side === readingSide(lesson));
  const several = tokensOf(lesson, readingSide(lesson)).length > 1;
  const opened = openEmbedding(lesson, linkOf("embedding", ["model"])!);
  if (link.view !== "meaning" || site === undefined || !several) return opened;
  return (await compareEmbeddings(lesson, link, site)) ?? opened;
});

/** Null where no two tokens are more alike than others: a compiled program's are all equally far apart. */
async function compareEmbeddings(lesson: Lesson, link: Link, site: SiteMeta): Promise<Prepared | null> {
  const { run, text } = lesson;
  const list = tokensOf(lesson, site.query_side);
  const places = list.map((_, at) => at).filter((at) => !isSign(list[at]));
  const compared = (places.length > 2 ? places : list.map((_, at) => at)).slice(0, COMPARED);
  const spaces = await lesson.source.ask("spaces", {
    trace: lesson.meta.id,
    site: site.name,
    head: 0,
    places: compared,
  });
  const pairs = pairsOf(spaces);
  // It opens on the pair that is least alike, which is not the answer unless there is only one.
  const start = pairs.at(-1);
  if (start === undefined || reaches(start.value, pairs[0].value)) return null;
  const side = run.sides[0];
  const facts = {
    token: token(list[compared[0]]),
    d: side.d_model,
    one: token(spaces.tokens[start.row]),
    other: token(spaces.tokens[start.column]),
    cosine: hundredths(start.value),
    named: run.directions !== undefined,
  };
  const own = { space: "embedding", places: compared.join(","), pair: `${start.row},${start.column}` };
  const place = { view: link.view, site: site.name, head: 0, own };
  return { place, said: text.embedding.said(facts), task: findPair(lesson, site), spot: link.spot };
}

interface EmbeddingPair {
  row: number;
  column: number;
  value: number;
}

/** Pairs of different tokens, the most alike first. */
function pairsOf(spaces: Spaces): EmbeddingPair[] {
  const found: EmbeddingPair[] = [];
  spaces.tokens.forEach((one, row) =>
    spaces.tokens.forEach((other, column) => {
      if (row < column && one !== other) found.push({ row, column, value: spaces.embedding[row][column] });
    }),
  );
  return found.sort((one, other) => other.value - one.value);
}

function findPair(lesson: Lesson, site: SiteMeta): Task {
  const words = lesson.text.embedding;
  const count = tokensOf(lesson, site.query_side).length;
  return {
    ask: words.ask,
    async check(now) {
      if (now.view !== "meaning" || now.own.pair === undefined) return unsolved(words.hint);
      const shownSite =
        now.meta.sites.find((one) => one.name === now.site)?.slot === "attention" ? now.site! : site.name;
      const places = chosenPlaces(now.own.places ?? null, count);
      const spaces = await lesson.source.ask("spaces", { trace: now.meta.id, site: shownSite, head: 0, places });
      const [row, column] = pairOf(now.own.pair, spaces.tokens.length);
      const [one, other] = [spaces.tokens[row], spaces.tokens[column]];
      if (one === other) return unsolved(words.same);
      const value = spaces.embedding[row][column];
      const found = { one: token(one), other: token(other), cosine: hundredths(value) };
      const most = pairsOf(spaces)[0].value;
      return judge(reaches(value, most), words.right(found), `${words.wrong(found)} ${words.hint}`);
    },
  };
}

/** Where spaces cannot be compared: the numbers of one token, in the model's panel. */
function openEmbedding(lesson: Lesson, link: Link): Prepared {
  const { run, text } = lesson;
  const side = run.sides[0];
  const list = tokensOf(lesson, side.side);
  const facts = { token: token(list[0] ?? ""), d: side.d_model, one: "", other: "", cosine: "" };
  const wanted = list.length - 1;
  const box = `${side.side}.embedding.token`;
  return {
    place: { view: link.view, own: { box, token: "0" } },
    said: text.embedding.said({ ...facts, named: run.directions !== undefined }),
    task: wanted < 1 ? null : chooseInPanel(lesson, box, wanted, list),
    spot: link.spot,
  };
}

function chooseInPanel(lesson: Lesson, box: string, wanted: number, list: readonly string[]): Task {
  const words = lesson.text.embedding;
  const named = { token: tokenAt(list, wanted) };
  return {
    ask: words.askToken(named),
    async check(now): Promise<Verdict> {
      const solved = now.own.box === box && Number(now.own.token ?? 0) === wanted;
      return { solved, said: solved ? words.rightToken(named) : words.hintToken };
    },
  };
}

/** How a run knows the order of its tokens; null where it does not. */
export function positionKind({ run, meta }: Lesson): { how: "added" | "turned" | "biased"; kind: string } | null {
  const added = run.sides.find((side) => side.embedding.position !== null)?.embedding.position;
  if (added != null) return { how: "added", kind: added };
  const inside = meta.sites.find((site) => site.arithmetic.turns || site.arithmetic.biased);
  if (inside === undefined) return null;
  return { how: inside.arithmetic.turns ? "turned" : "biased", kind: inside.words.position };
}

const knowsOrder = (lesson: Lesson): boolean => positionKind(lesson) !== null && placeForPosition(lesson) !== null;

export const position = chapterOf("position", knowsOrder, async (lesson, words) => {
  const list = tokensOf(lesson, readingSide(lesson));
  const { link, own } = placeForPosition(lesson)!;
  const near = list.slice(0, POSITIONS);
  const word = near.findLastIndex((one) => !isSign(one));
  const wanted = word > 0 ? word : near.length - 1;
  const plain = near.filter((one) => !isSign(one));
  const causal = lesson.meta.sites.every((site) => site.arithmetic.causal);
  const [first, second] = (plain.length > 1 ? plain : near).map((one) => token(one));
  return {
    place: { view: link.view, own },
    said: words.said({ ...positionKind(lesson)!, first, second: second ?? first, causal }),
    task: wanted < 1 ? null : goToPosition(lesson, link, wanted, list),
  };
});

function placeForPosition(lesson: Lesson): { link: Link; own: Record<string, string> } | null {
  const link = linkOf("position", lesson.views);
  if (link === null || link.view === "positions") return link && { link, own: { position: "0" } };
  const box = lesson.run.sides.flatMap((side) => side.boxes).find((one) => one.kind === "position");
  return box === undefined ? null : { link, own: { box: box.name, token: "0" } };
}

function goToPosition(lesson: Lesson, link: Link, wanted: number, list: readonly string[]): Task {
  const words = lesson.text.position;
  const slider = link.view === "positions" ? "position" : "token";
  return {
    ask: words.ask({ token: tokenAt(list, wanted) }),
    async check(now) {
      const at = Number(now.own[slider] ?? -1);
      if (now.view !== link.view || at < 0) return unsolved(words.hint);
      if (at === wanted) return { solved: true, said: words.right({ token: tokenAt(list, at), at }) };
      const wrong = words.wrong({ at, token: at < list.length ? tokenAt(list, at) : null });
      return unsolved(`${wrong} ${words.hint}`);
    },
  };
}
