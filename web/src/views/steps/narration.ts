/** What each step is, in a sentence with the numbers of the row that is shown. */

import { countText } from "../../lib/local";
import type { Role, Row, SiteMeta } from "../../lib/source";
import { piece, shown, partWords } from "../../lib/words";
import { scaleWords } from "./working";
import { t } from "../../text";
import { spoken } from "../../text/server";

export const NAMES = t.steps.names;

/** A token as a word of a sentence: without the mark of the space before it. */
export function word(token: string): string {
  return piece(token).replace(/^·(?=.)/, "");
}

export interface Part {
  text: string;
  role?: Role;
}

/** One sentence a step. Words between braces are coloured by their role: "{query}", "{weight:shares}". */
export function sentences(site: SiteMeta, row: Row, query: number, tokens: string[]) {
  const token = word(tokens[query] ?? "");
  return [vectors(site), scores(site, token), weights(site, row), sum(site, token)].map(coloured);
}

function vectors(site: SiteMeta): string {
  const where = site.slot === "cross" ? t.steps.crossTexts : t.steps.sameText;
  const turned = site.arithmetic.turns ? t.steps.turnedWords : "";
  const shared = site.n_kv_heads < site.n_heads ? t.steps.sharedKeys(site.n_heads / site.n_kv_heads) : "";
  return `${t.steps.vectorWords} ${where}${turned}${shared}`;
}

function scores(site: SiteMeta, token: string): string {
  const { turns, formula } = site.arithmetic;
  const pair = t.steps.compared(token, turns);
  return formula === "query · key" ? pair + t.steps.multiplied(site.d_head) : pair + t.steps.scoreIs(spoken(formula));
}

function weights(site: SiteMeta, row: Row): string {
  const { by } = scaleWords(row.score ? scaleOf(row) : 1, site.d_head, site.arithmetic.scale_reason);
  const scaled = t.steps.scaledWords(by);
  const off = (row.allowed ?? []).filter((may) => !may).length;
  const mask = t.steps.maskWords(off, countText(off), shown(site.arithmetic.blocked));
  return scaled + mask + weighed(site);
}

function weighed(site: SiteMeta): string {
  switch (site.arithmetic.kind) {
    case "kernelized":
      return t.steps.kernelizedWords;
    case "argmax":
      return t.steps.argmaxWords;
    case "softmax":
      return t.steps.softmaxWords;
    case "rows":
      return t.steps.ruleWords(partWords(site.words.weighting), spoken(site.arithmetic.rule));
  }
}

function sum(site: SiteMeta, token: string): string {
  return t.steps.sumWords(token) + (site.n_heads > 1 ? t.steps.joined(site.n_heads - 1) : "");
}

function scaleOf(row: Row): number {
  const at = row.score?.findIndex((score) => score !== null && Math.abs(score) > 1e-6) ?? -1;
  const [score, scaled] = [row.score?.[at], row.scaled?.[at]];
  return at < 0 || score == null || scaled == null ? 1 : scaled / score;
}

/** The parts of a sentence, and the same without colours. */
function coloured(text: string) {
  const parts = text
    .split(/(\{[^}]+\})/)
    .filter(Boolean)
    .map(part);
  return { parts, plain: parts.map(({ text }) => text).join("") };
}

function part(text: string): Part {
  const found = /^\{(\w+)(?::([^}]+))?\}$/.exec(text);
  return found ? { text: found[2] ?? found[1], role: found[1] as Role } : { text };
}
