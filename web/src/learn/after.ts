/** The chapters after attention: residual and norm, feed-forward, output, choosing a token, and a change of one's own. */

import { highest, lowest, place } from "../lib/arithmetic";
import { countText } from "../lib/local";
import { isSwap, scoreEdit } from "../lib/edits";
import type { BoxSpec, Candidate, HeadEffect, Meta, SiteMeta, StepEdit } from "../lib/source";
import { percent, shown, siteTitle } from "../lib/words";
import { shareOf, shareText } from "../lib/differences";
import {
  allowedOf,
  answeringSide,
  chapterOf,
  crossSites,
  type Focus,
  focusOf,
  isSign,
  judge,
  LANES,
  type Lesson,
  type Now,
  type Question,
  reaches,
  selfSites,
  type Task,
  tokensOf,
  unsolved,
  weightsOf,
} from "./lesson";
import { token, tokenAt } from "./markup";
import { openedToken } from "./reading";

/** Beyond so many heads, measuring what each is worth would take long. */
const HEADS_MEASURED = 96;
const CANDIDATES = 8;

function sideOf(lesson: Lesson): Lesson["run"]["sides"][number] {
  return lesson.run.sides[lesson.run.sides.length - 1];
}

const hasSums = (lesson: Lesson): boolean => sideOf(lesson).boxes.some((box) => box.kind === "add");

export const residual = chapterOf("residual", hasSums, async (lesson, words, link) => {
  const side = answeringSide(lesson.run);
  const { rows } = await lesson.source.ask("stream", { trace: lesson.meta.id, side });
  const [first, last] = [rows[0], rows[rows.length - 1]];
  const list = tokensOf(lesson, side).slice(0, LANES);
  const at = lowest(last.cosine.slice(0, list.length));
  const boxes = sideOf(lesson).boxes;
  const example = list.findIndex((one, index) => index !== at && !isSign(one));
  const told = Math.max(0, example);
  const facts = {
    norm: normOf(boxes),
    layers: sideOf(lesson).n_layers,
    adds: boxes.filter((box) => box.kind === "add").length,
    token: tokenAt(list, told),
    start: shown(first.norm[told], 3),
    end: shown(last.norm[told], 3),
  };
  return {
    said: words.said(facts),
    task: list.length < 2 ? null : findTurned(lesson, last.cosine.slice(0, list.length)),
    spot: link.spot.replace("{side}", side),
  };
});

/** Whether norms stand before the parts, after the additions, or nowhere. */
export function normOf(boxes: readonly BoxSpec[]): "pre" | "post" | "none" {
  const inLayers = boxes.filter((box) => box.layer !== null);
  const norm = inLayers.findIndex((box) => box.kind === "norm");
  if (norm < 0) return "none";
  return norm < inLayers.findIndex((box) => box.kind === "attention") ? "pre" : "post";
}

function findTurned(lesson: Lesson, cosine: readonly number[]): Task {
  const words = lesson.text.residual;
  const side = answeringSide(lesson.run);
  return {
    ask: words.ask,
    async check(now) {
      const at = openedToken(now, side);
      if (at === null || cosine[at] === undefined) return unsolved(words.hint);
      const found = { token: tokenAt(tokensOf(lesson, side), at), cosine: shown(cosine[at], 3) };
      return judge(reaches(-cosine[at], -Math.min(...cosine)), words.right(found), words.wrong(found));
    },
  };
}

/** The last feed-forward network of the answering side whose hidden units the trace has. */
function network(lesson: Lesson): { box: BoxSpec; hidden: string } | null {
  const box = sideOf(lesson).boxes.findLast((one) => one.kind === "feed_forward");
  const hidden = box?.values.find((value) => value.name.endsWith(".hidden"))?.name;
  return box === undefined || hidden === undefined ? null : { box, hidden };
}

const hasNetwork = (lesson: Lesson): boolean => network(lesson) !== null;

export const feedforward = chapterOf("feedforward", hasNetwork, async (lesson, words, link) => {
  const { box, hidden } = network(lesson)!;
  const side = answeringSide(lesson.run);
  const list = tokensOf(lesson, side);
  const at = Math.max(
    0,
    list.findIndex((one, index) => index > 0 && !isSign(one)),
  );
  const numbers = await lesson.source.ask("box", {
    trace: lesson.meta.id,
    box: box.name,
    token: at,
    key: 0,
    head: 0,
  });
  const units = (numbers.values[hidden] ?? []).map((one) => one ?? 0);
  const best = highest(units.map(Math.abs));
  const start = best === 0 ? Math.min(1, units.length - 1) : 0;
  const facts = {
    token: tokenAt(list, at),
    shape: sideOf(lesson).layers[box.layer ?? 0]?.feed_forward ?? "",
    units: units.length,
    active: units.filter((one) => one > 0).length,
    unit: best,
    value: shown(units[best], 3),
    program: lesson.run.program?.exact === true,
  };
  const own = { box: box.name, token: String(at), value: hidden, [`unit${units.length}`]: String(start) };
  return {
    place: { view: link.view, own },
    said: words.said(facts),
    task: units.length < 2 || best === start ? null : findUnit(lesson, { box: box.name, token: at, units }),
  };
});

function findUnit(lesson: Lesson, of: { box: string; token: number; units: number[] }): Task {
  const words = lesson.text.feedforward;
  const named = { token: tokenAt(tokensOf(lesson, answeringSide(lesson.run)), of.token) };
  const most = Math.max(...of.units.map(Math.abs));
  return {
    ask: words.ask(named),
    async check(now) {
      if (now.own.box !== of.box) return unsolved(words.hint);
      if (Number(now.own.token ?? 0) !== of.token) return unsolved(words.otherToken(named));
      const unit = Number(now.own[`unit${of.units.length}`] ?? -1);
      if (of.units[unit] === undefined) return unsolved(words.hint);
      const found = { unit, value: shown(of.units[unit], 3) };
      return judge(reaches(Math.abs(of.units[unit]), most), words.right(found), `${words.wrong(found)} ${words.hint}`);
    },
  };
}

const hasAnswers = (lesson: Lesson): boolean => lesson.meta.candidates.some((row) => row.length > 0);

export const output = chapterOf("output", hasAnswers, async (lesson, words, link) => {
  const { run, meta } = lesson;
  const rows = meta.candidates;
  const at = shownPlace(lesson);
  const [best, second] = rows[at];
  const facts = {
    kind: answerKind(lesson),
    answers: countText(run.labels?.length ?? run.vocabulary),
    best: token(best.text),
    p: percent(best.p),
    second: second === undefined || second.p < 0.0005 ? null : `${token(second.text)} (${percent(second.p)})`,
    places: rows.length,
  };
  const said = words.said(facts);
  const plain = { place: { view: link.view, own: {} }, said };
  if (rows.length > 1) return { ...plain, task: findPlace(lesson) };
  const total = meta.sites.reduce((sum, site) => sum + site.n_heads, 0);
  if (!lesson.views.includes("intervene") || total > HEADS_MEASURED) return { ...plain, task: null };
  const task = await switchOff(lesson, best);
  const there = { view: "intervene", own: {} } as const;
  return task === null ? { ...plain, task } : { place: there, said, task, spot: `[data-testid^="head-toggle-"]` };
});

/** The place of the text whose answer is spoken of. */
function shownPlace({ run, meta }: Lesson): number {
  const last = meta.candidates.length - 1;
  if (run.place === "last") return last;
  if (meta.program !== undefined) return Math.min(last, meta.program.offset);
  const blank = run.place === "blank" ? (meta.sides.encoder?.tokens.indexOf("<mask>") ?? -1) : 0;
  return Math.min(last, Math.max(0, blank));
}

function answerKind({ run }: Lesson): "writes" | "continues" | "blank" | "class" | "program" {
  if (run.program !== undefined) return "program";
  if (run.target !== "none") return run.target;
  return run.place === "blank" ? "blank" : "class";
}

function findPlace(lesson: Lesson): Task {
  const words = lesson.text.output;
  const side = answeringSide(lesson.run);
  const box = `${side}.output`;
  const list = tokensOf(lesson, side);
  const program = lesson.meta.program;
  const answered = program === undefined ? LANES : program.offset + program.answers.length;
  const rows = lesson.meta.candidates.slice(0, Math.min(LANES, answered));
  const sure = rows.map((row) => row[0]?.p ?? 1);
  const least = Math.min(...sure);
  const chosen = (now: Now): number | null => {
    const at = now.own.box === box ? Number(now.own.token ?? 0) : -1;
    return sure[at] === undefined ? null : at;
  };
  // A compiled program is sure wherever it answers: there an answer is looked for.
  if (program !== undefined || reaches(least, Math.max(...sure))) {
    const answer = rows[rows.length - 1][0].text;
    return {
      ask: words.askPlace({ answer: token(answer) }),
      async check(now) {
        const at = chosen(now);
        if (at === null) return unsolved(words.hint);
        const found = { answer: token(rows[at][0].text), p: percent(sure[at]) };
        return judge(rows[at][0].text === answer, words.rightPlace(found), words.wrongPlace(found));
      },
    };
  }
  return {
    ask: words.ask,
    async check(now) {
      const at = chosen(now);
      if (at === null) return unsolved(words.hint);
      const found = { token: tokenAt(list, at), p: percent(sure[at]) };
      return judge(reaches(-sure[at], -least), words.right(found), words.wrong(found));
    },
  };
}

/** Where there is one answer for the whole text: which head does it need? */
async function switchOff(lesson: Lesson, best: Candidate): Promise<Task | null> {
  const words = lesson.text.output;
  const worth: { site: SiteMeta; effect: HeadEffect }[] = [];
  for (const site of lesson.meta.sites) {
    const { effects } = await lesson.source.ask("effects", { trace: lesson.meta.id, site: site.name });
    worth.push(...effects.map((effect) => ({ site, effect })));
  }
  const at = place(
    worth.map((one) => one.effect.change),
    (one, other) => one < other,
  );
  const most = worth[at];
  if (worth.length < 2 || most === undefined || most.effect.change >= 0) return null;
  const name = (site: SiteMeta, head: number): string => `${siteTitle(site)}, ${lesson.text.heads.headName({ head })}`;
  return {
    ask: words.askHead({ answer: token(best.text) }),
    async check(now) {
      const off = now.meta.edits.filter((edit): edit is StepEdit => !isSwap(edit) && edit.times === 0);
      if (off.length === 0) return unsolved(words.hintHead);
      if (off.length > 1 || now.meta.edits.length > 1) return unsolved(words.many);
      const [{ at, head }] = off;
      const site = lesson.meta.sites.find((one) => one.name === at);
      if (site === undefined || head == null) return unsolved(words.hintHead);
      if (site.name !== most.site.name || head !== most.effect.head)
        return unsolved(words.wrongHead({ name: name(site, head) }));
      const after = shareText(shareOf(best.id, now.meta.candidates[0] ?? []));
      const found = { name: name(site, head), before: percent(best.p), after };
      return { solved: true, said: words.rightHead(found) };
    },
  };
}

const hasOutput = (lesson: Lesson): boolean => lesson.run.target !== "none";

export const sampling = chapterOf("sampling", hasOutput, async (lesson, words, link) => {
  const taken = await stepsTaken(lesson, "1");
  const facts = {
    steps: taken.length,
    text: taken.map((one) => one.text).join(" "),
    translates: lesson.run.target === "writes",
  };
  // It opens on the step that was surest, so that there is one to be found.
  const start = highest(taken.map((one) => one.p)) + 1;
  const puzzle = taken.length > 1 && !reaches(-taken[start - 1].p, -Math.min(...taken.map((one) => one.p)));
  return {
    place: { view: link.view, own: { beam: "1", at: String(Math.max(1, start)) } },
    said: words.said(facts),
    task: puzzle ? findUnsure(lesson, link.view) : null,
  };
});

/** The tokens on the best path of the search that the view shows, with their probabilities. */
async function stepsTaken(lesson: Lesson, beam: string): Promise<{ text: string; p: number }[]> {
  const { source, step } = lesson.meta;
  const asked = { source, beam: Number(beam), candidates: CANDIDATES, edits: [], step };
  const { nodes, best } = await lesson.source.ask("decode", asked);
  return best
    .map((id) => nodes[id])
    .filter((node) => node !== undefined && node.parent !== null)
    .map((node) => ({ text: node.text, p: Math.exp(node.log_prob) }));
}

function findUnsure(lesson: Lesson, view: string): Task {
  const words = lesson.text.sampling;
  return {
    ask: words.ask,
    async check(now) {
      const taken = await stepsTaken(lesson, now.own.beam ?? "3");
      const step = Number(now.own.at ?? 1);
      const here = taken[step - 1];
      if (now.view !== view || here === undefined) return unsolved(words.hint);
      const found = { step, token: token(here.text), p: percent(here.p) };
      return judge(reaches(-here.p, -Math.min(...taken.map((one) => one.p))), words.right(found), words.wrong(found));
    },
  };
}

function sitesToChange(lesson: Lesson): SiteMeta[] {
  const cross = crossSites(lesson);
  return cross.length > 0 ? cross : selfSites(lesson);
}

const hasSitesToChange = (lesson: Lesson): boolean => sitesToChange(lesson).length > 0;

export const change = chapterOf("change", hasSitesToChange, async (lesson, words, link) => {
  const told = (await focusOf(lesson, sitesToChange(lesson)))!;
  const { focus, key } = (await decisive(lesson, told)) ?? { focus: told, key: otherKey(told) };
  const { site, head, query, row, queries, keys } = focus;
  const facts = {
    query: tokenAt(queries, query, "query"),
    key: tokenAt(keys, key ?? focus.key, "key"),
    best: tokenAt(keys, focus.key, "key"),
    weight: percent(row.weight[key ?? focus.key]),
    most: percent(row.weight[focus.key]),
    score: shown(row.score?.[key ?? focus.key], 3),
  };
  const target = lesson.meta.sides.decoder?.ids.slice(1);
  return {
    place: {
      ...{ view: link.view, site: site.name, head, query, key: key ?? focus.key, own: {} },
      ...(lesson.run.target === "writes" && target ? { target } : {}),
    },
    said: words.said(facts),
    task: key === null ? null : lookElsewhere(lesson, focus, key),
    question: key === null ? null : await guessAnswer(lesson, focus, key),
  };
});

/** Heads that are tried, those that the answer needs most first, and queries of each. */
const [HEADS_TRIED, QUERIES_TRIED] = [2, 3];

/** A cell whose change changes the answer, found by trying; null where none of a few does. */
async function decisive(lesson: Lesson, told: Focus): Promise<{ focus: Focus; key: number } | null> {
  const { meta, source } = lesson;
  const sites = sitesToChange(lesson);
  if (sites.reduce((sum, site) => sum + site.n_heads, 0) > HEADS_MEASURED) return null;
  const worth = await Promise.all(sites.map((site) => source.ask("effects", { trace: meta.id, site: site.name })));
  const heads = worth
    .flatMap(({ effects }, at) => effects.map(({ head, change }) => ({ site: sites[at], head, change })))
    .sort((one, other) => one.change - other.change);
  const target = lesson.run.target === "writes" ? (meta.sides.decoder?.ids.slice(1) ?? null) : null;
  for (const { site, head } of [told, ...heads.slice(0, HEADS_TRIED)]) {
    const { rows, columns, data } = await weightsOf(lesson, site, head);
    const most = Array.from({ length: Math.min(rows, LANES) }, (_, query) =>
      Math.max(...data.subarray(query * columns, (query + 1) * columns)),
    );
    const queries = most.map((_, query) => query).sort((one, other) => most[other] - most[one]);
    for (const query of queries.slice(0, QUERIES_TRIED)) {
      const row = await source.ask("row", { trace: meta.id, site: site.name, head, query });
      const focus = { ...told, site, head, query, row, key: highest(row.weight) };
      focus.queries = tokensOf(lesson, site.query_side);
      focus.keys = tokensOf(lesson, site.key_side);
      const key = otherKey(focus);
      if (key === null) continue;
      const edits = [scoreEdit({ at: site.name, head, query, key }, enoughFor(focus))];
      const changed = await source.ask("trace", { source: meta.source, target, edits, step: meta.step });
      if (!sameAnswers(changed, meta)) return { focus, key };
    }
  }
  return null;
}

/** Whether two traces say the same at every place. */
function sameAnswers(one: Meta, other: Meta): boolean {
  const said = ({ candidates }: Meta): string => candidates.map((row) => row[0]?.id).join();
  return said(one) === said(other);
}

/** A score that makes a weight of e⁴ : 1 against the best of the others: a lead of four after the scale. */
function enoughFor({ site, head, row }: Focus): number {
  const scores = (row.score ?? []).filter((one, at): one is number => one !== null && allowedOf(row)[at]);
  const lead = 4 / Math.max(1e-3, Math.abs(site.scale[head] ?? site.scale[0] ?? 1));
  return Math.ceil(Math.max(0, ...scores) + lead);
}

/** A key that the query may look at and hardly does, a word rather than a sign. */
function otherKey({ site, row, query, key: best, keys }: Focus): number | null {
  const allowed = allowedOf(row);
  const weights = row.weight.map((weight, key) => {
    const open = allowed[key] && key !== best && !reaches(weight, row.weight[best]);
    const itself = site.slot === "attention" && key === query;
    return open ? weight + (isSign(keys[key]) || itself ? 1 : 0) : Infinity;
  });
  const found = lowest(weights);
  return found < 0 || weights[found] === Infinity ? null : found;
}

/** Whether the answer will be another one, before the score is changed. */
async function guessAnswer(lesson: Lesson, focus: Focus, key: number): Promise<Question> {
  const words = lesson.text.change;
  const { site, head, query, queries, keys } = focus;
  const target = lesson.run.target === "writes" ? (lesson.meta.sides.decoder?.ids.slice(1) ?? null) : null;
  const edits = [scoreEdit({ at: site.name, head, query, key }, enoughFor(focus))];
  const { source, step } = lesson.meta;
  const changed = await lesson.source.ask("trace", { source, target, edits, step });
  const same = sameAnswers(changed, lesson.meta);
  return {
    ask: words.guess({ query: tokenAt(queries, query, "query"), key: tokenAt(keys, key, "key") }),
    choices: words.choices,
    right: [same ? 0 : 1],
    said: words.guessed({ same }),
  };
}

function lookElsewhere(lesson: Lesson, focus: Focus, key: number): Task {
  const words = lesson.text.change;
  const { site, head, query, queries, keys } = focus;
  const named = { query: tokenAt(queries, query, "query"), key: tokenAt(keys, key, "key") };
  const enough = String(enoughFor(focus));
  return {
    ask: words.ask(named),
    async check(now) {
      if (now.meta.edits.length === 0) return unsolved(words.hint({ score: enough }));
      const { weight } = await lesson.source.ask("row", { trace: now.meta.id, site: site.name, head, query });
      const found = { ...named, weight: percent(weight[key]) };
      if (!reaches(weight[key], Math.max(...weight)))
        return unsolved(`${words.wrong(found)} ${words.hint({ score: enough })}`);
      const answers = { answer: token(now.meta.answer), before: token(lesson.meta.answer) };
      return {
        solved: true,
        said: words.right({ ...found, ...answers, same: sameAnswers(now.meta, lesson.meta) }),
      };
    },
  };
}
